//! Examines which parts of the sandbox of `ttvm` this host supports.

use ::sandbox::{Files, Offered};

use super::finding::{Finding, finding};

const LANDLOCK: &str = "sandbox: Landlock";
const SECCOMP: &str = "sandbox: seccomp";

/// A finding for each part of the sandbox that a host may lack: Landlock and seccomp.
pub(super) fn examine() -> Vec<Finding> {
    findings(&::sandbox::probe())
}

fn findings(offered: &Offered) -> Vec<Finding> {
    vec![landlock(&offered.files), seccomp(&offered.calls)]
}

fn landlock(files: &Result<Files, String>) -> Finding {
    let newer = "Linux 6.12 or newer blocks all of them";
    match files {
        Ok(Files::All) => finding(LANDLOCK, true, "blocks files, network and other processes", ""),
        Ok(Files::Most(version)) => finding(
            LANDLOCK,
            true,
            format!("version {version}, which blocks most files, network and other processes"),
            newer,
        ),
        Ok(Files::None(why)) => {
            let advice =
                "a guest that breaks out can open files; use Linux 5.13 or newer, with landlock in lsm=";
            finding(LANDLOCK, false, *why, advice)
        }
        Err(error) => finding(LANDLOCK, false, error, "use --no-sandbox to run without"),
    }
}

fn seccomp(calls: &Result<bool, String>) -> Finding {
    match calls {
        Ok(true) => finding(SECCOMP, true, "refuses system calls that are not needed", ""),
        Ok(false) => finding(
            SECCOMP,
            false,
            "the kernel has no filters of system calls",
            "a guest that breaks out can make any system call; use a kernel with CONFIG_SECCOMP_FILTER",
        ),
        Err(error) => finding(SECCOMP, false, error, "use --no-sandbox to run without"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_lacks_is_said_with_what_to_do() {
        let lines = |files, calls| {
            let found = findings(&Offered { files, calls }).into_iter();
            found.map(|it| (it.ok, format!("{}; {}", it.detail, it.advice))).collect::<Vec<_>>()
        };
        let all = lines(Ok(Files::All), Ok(true));
        assert!(all.iter().all(|(ok, line)| *ok && line.ends_with("; ")), "{all:?}");
        let old = lines(Ok(Files::Most(3)), Ok(true));
        assert!(old[0].0 && old[0].1.contains("version 3"), "{old:?}");
        let none = lines(Ok(Files::None("the kernel has no Landlock")), Ok(false));
        assert!(none.iter().all(|(ok, line)| !ok && !line.ends_with("; ")), "{none:?}");
        let failed = lines(Err("it fails".to_string()), Err("it fails".to_string()));
        assert!(failed.iter().all(|(ok, line)| !ok && line.contains("--no-sandbox")), "{failed:?}");
    }
}
