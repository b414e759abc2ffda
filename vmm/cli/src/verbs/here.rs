//! `ttvm here`: runs a command on a kernel, on the host's own files, and records the run.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use cpu::TurnPolicy;
use gathered_image::BLOCK_BYTES;
use guest_init::{MARK, Setup};
use host::{LiveConsole, LiveInputs, LiveOptions, RawTerminal};
use machine::RunStop;
use machine::config::{MachineOptions, Processors};
use machine::engine::EngineKind;
use machine::error::{Error, exit_code};
use machine::position::{Count, Instructions};
use nix::unistd::{getgid, getuid};
use recording::{Recordable, write_panic_note};

use crate::companion::{Companion, Leftovers};
use crate::folder_disk::FolderDisk;
use crate::here::ended::Ended;
use crate::here::kernel::Kernel;
use crate::here::{modules, options, out};
use crate::keep_on;
use crate::machine_args::{parse_processors, parse_size, parse_turns, some_time, with_turns};
use crate::new_folder::NewFolder;
use crate::sandbox_arg::{self, SandboxArgs};

/// The key that ends a file on a terminal: ^D.
const END_OF_FILE: u8 = 4;
/// The variables of the environment that the command gets.
const VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "TERM",
    "COLORTERM",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "SHELL",
    "USER",
    "LOGNAME",
    "EDITOR",
    "PAGER",
    "LS_COLORS",
    "TZ",
];

/// Run a command on a kernel and the host's own files, and record it
///
/// Start ttvm here in a kernel tree after `make`. The guest boots the tree's kernel, and the
/// guest's root is the host's own. The guest's writes never reach the host's files. Without a
/// command, you get a shell. The exit code is the command's.
///
/// ttvm keeps the recording if the command fails, if the time is over, or if the kernel reports
/// a bug. ttvm then prints the command that opens the recording.
///
/// Examples:
///   ttvm here
///   ttvm here -- ./reproducer
///   ttvm here --kernel 6.1.0-57-amd64 --timeout 60s --out results -- ./test.sh
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Kernel: a bzImage, a kernel tree, or the release of a kernel in /boot [default: the tree around the current folder]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<PathBuf>,
    /// The folder that becomes the guest's root
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// A path of the host that the guest does not see (repeatable). The guest never sees ~/.ssh and ~/.gnupg
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// The folder with the kernel's modules, which depmod(8) has indexed [default: beside the kernel, or /lib/modules/RELEASE]
    #[arg(long, value_name = "FOLDER")]
    modules: Option<PathBuf>,
    /// More of the kernel's command line (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    append: Vec<String>,
    /// Run the command as yourself. By default the command runs as root
    #[arg(long)]
    user: bool,
    /// Variable that the command gets, as NAME=VALUE, or NAME for its value here (repeatable)
    #[arg(long, value_name = "VARIABLE")]
    env: Vec<OsString>,
    /// Number of processors, 1 to 64, like 4 or 8,sockets=2,threads=2
    #[arg(long, value_name = "N[,sockets=S][,threads=T]", default_value = "2", value_parser = parse_processors)]
    cpus: Processors,
    /// Who gives turns to several processors: ring or random:SEED
    #[arg(long, value_name = "POLICY", value_parser = parse_turns)]
    turns: Option<TurnPolicy>,
    /// RAM size: a number with K, M or G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    memory: u64,
    /// End the run after this guest time, like 60s. The exit code is then 124
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    timeout: Option<u64>,
    /// The recording to make: a new folder [default: here.ttvm, or here-2.ttvm and so on]
    #[arg(short, long, value_name = "NAME.ttvm")]
    output: Option<PathBuf>,
    /// Copy the files that the guest leaves in /out to this new folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// When to keep the recording
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Keep::Fail)]
    keep: Keep,
    /// Show all messages of the kernel
    #[arg(short, long)]
    verbose: bool,
    /// Print the kernel options that the guest needs, as a fragment for kernel/configs/, and end
    #[arg(long)]
    config: bool,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// The command and its arguments [default: your shell]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// When the recording is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Keep {
    /// Always
    Always,
    /// If the command failed, the time was over, or the kernel reported a bug
    Fail,
    /// Never: the run is not recorded
    Never,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    if args.config {
        crate::output::print(options::fragment().trim_end())?;
        return Ok(exit_code::DONE);
    }
    let kernel = Kernel::find(args.kernel.as_deref())?;
    let output = if args.keep == Keep::Never { None } else { Some(args.output()?) };
    let folder = output.as_deref().map(NewFolder::make).transpose()?;
    let mut planned = Planned::new(args, &kernel, output.as_deref())?;
    args.out.as_deref().map_or(Ok(()), out::make)?;
    let ended = planned.run(args, output.as_deref().zip(folder))?;
    ended.explain();
    match &output {
        Some(output) if args.keep == Keep::Always || ended.is_failure() => {
            ended.say_what_next(output, &kernel)
        }
        Some(output) => keep_on::remove(output)?,
        None => {}
    }
    Ok(ended.exit_code())
}

/// A machine that is about to run.
struct Planned {
    guest: Recordable<Instructions>,
    /// The offset in bytes on the disk of the block with the command's status.
    status_at: u64,
    /// The helper process that removes the temporary folder, and an empty folder of a recording. This value must live until then.
    _companion: Companion,
}

impl Planned {
    fn new(args: &Args, kernel: &Kernel, output: Option<&Path>) -> Result<Planned, Error> {
        let failed = |source| Error::Host { what: "cannot make a temporary folder".to_string(), source };
        let temporary = tempfile::Builder::new().prefix("ttvm-here-").tempdir().map_err(failed)?;
        let modules = args.modules(kernel, temporary.path())?;
        if let Some(file) = kernel.options() {
            options::check(&file, modules.is_some())?;
        }
        let power_on = host::power_on(None, None)?;
        let grafts = modules.as_deref().map(|folder| kernel.graft(folder)).transpose()?.flatten();
        let disk = FolderDisk {
            folder: &args.root,
            hidden: &args.hide,
            grafts: grafts.as_slice(),
            more_blocks: 1,
            created_seconds: power_on.unix_seconds,
        };
        let gathered = disk.gather(output, args.sandbox)?;
        let status_at = (gathered.0.blocks() - 1) * BLOCK_BYTES as u64;
        let setup = Setup { status_at, ..args.setup(modules.as_deref())? };
        let initrd = temporary.path().join("initrd");
        let bytes = setup.initrd().map_err(|error| Error::Usage(error.to_string()))?;
        std::fs::write(&initrd, bytes).map_err(Error::file("write", &initrd))?;
        let options = MachineOptions {
            kernel: kernel.image.clone(),
            initrd: Some(initrd),
            cmdline: args.cmdline(),
            gathered_disk: Some(gathered),
            processors: with_turns(args.cpus, args.turns)?,
            memory_bytes: args.memory,
            ..MachineOptions::default()
        };
        let guest = match output {
            Some(folder) => Recordable::carrying_images(EngineKind::SOFT, &options, power_on, folder)?,
            None => Recordable::on(EngineKind::SOFT, &options, power_on)?,
        };
        let left = Leftovers { folder: Some(temporary.path()), empty_folder: output, socket: None };
        let companion = Companion::start(&left, None)?;
        // From now on the companion removes the folder.
        let _ = temporary.keep();
        Ok(Planned { guest, status_at, _companion: companion })
    }

    /// Runs the guest to its end, and records it in the folder, if there is one.
    fn run(&mut self, args: &Args, recorded: Option<(&Path, NewFolder<'_>)>) -> Result<Ended, Error> {
        let output = recorded.as_ref().map(|(output, _)| *output);
        let mut live = LiveInputs::new(LiveConsole::new(args.console())?);
        let mut needs = sandbox_arg::of_machine(self.guest.config(), EngineKind::SOFT);
        needs.helper = true;
        needs.written.extend(args.out.clone());
        match recorded {
            Some((output, mut folder)) => {
                needs.written.push(output.to_path_buf());
                let recording = self.guest.record_in_empty(output)?;
                folder.leave_signals();
                args.sandbox.lock_in(&needs)?;
                folder.keep();
                let _terminal = RawTerminal::enter()?;
                recording.run(live)?;
            }
            None => {
                self.guest.forget_beginning();
                args.sandbox.lock_in(&needs)?;
                let _terminal = RawTerminal::enter()?;
                while !matches!(self.guest.machine.run(Instructions::MAX, &mut live)?, RunStop::Ended(_)) {}
            }
        }
        let ended = Ended::of(&mut self.guest.machine, self.status_at)?;
        if let (Some(panic), Some(output)) = (&ended.panic, output) {
            write_panic_note(output, panic);
        }
        if let Some(folder) = &args.out {
            out::copy(&mut self.guest.machine, folder)?;
        }
        Ok(ended)
    }
}

impl Args {
    /// The folder with the kernel's modules. The modules of a kernel tree are indexed in the temporary folder.
    fn modules(&self, kernel: &Kernel, temporary: &Path) -> Result<Option<PathBuf>, Error> {
        if self.modules.is_some() {
            return Ok(self.modules.clone());
        }
        match &kernel.tree {
            Some(tree) => modules::index(tree, &kernel.release, temporary),
            None => Ok(kernel.modules()),
        }
    }

    /// The kernel's command line. A panic ends the run at once.
    fn cmdline(&self) -> String {
        let mut words = vec!["console=ttyS0", "panic=-1"];
        if !self.verbose {
            words.push("quiet");
        }
        words.extend(self.append.iter().map(String::as_str));
        words.join(" ")
    }

    fn console(&self) -> LiveOptions<Instructions> {
        LiveOptions {
            end_after_ns: self.timeout,
            program_mark: Some(MARK.to_string()),
            end_of_input: Some(END_OF_FILE),
            ..LiveOptions::default()
        }
    }

    /// The setup of the guest's first process.
    fn setup(&self, modules: Option<&Path>) -> Result<Setup, Error> {
        let root = self.root.canonicalize().map_err(Error::file("open", &self.root))?;
        let here = std::env::current_dir().map_err(Error::file("find", "."))?;
        let folder =
            here.strip_prefix(&root).map_or(PathBuf::from("/"), |inside| Path::new("/").join(inside));
        let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        let command = if self.command.is_empty() { vec![shell()] } else { self.command.clone() };
        let size = if std::io::stdout().is_terminal() { host::window_size() } else { None };
        Ok(Setup {
            arguments: command.into_iter().map(OsString::into_vec).collect(),
            environment: self.environment(),
            own_tmp: !folder.starts_with("/tmp"),
            folder: folder.into_os_string().into_vec(),
            user: if self.user { (getuid().as_raw(), getgid().as_raw()) } else { (0, 0) },
            terminal: size,
            no_input: is_empty_input(),
            status_at: 0,
            modules: modules.map_or(Ok(Vec::new()), modules::needed)?,
        })
    }

    /// The command's environment.
    fn environment(&self) -> Vec<Vec<u8>> {
        let value = |name: &OsString| {
            let mut variable = name.clone().into_vec();
            variable.push(b'=');
            variable.extend(std::env::var_os(name)?.into_vec());
            Some(variable)
        };
        let usual = VARIABLES.iter().filter_map(|name| value(&OsString::from(name)));
        let wanted = self.env.iter().filter_map(|wanted| match wanted.as_bytes().contains(&b'=') {
            true => Some(wanted.as_bytes().to_vec()),
            false => value(wanted),
        });
        usual.chain(wanted).collect()
    }

    /// The folder of the recording. If the user named none, the function takes the first free name in the current folder. If
    /// the current folder cannot be written, the recording is in the folder of temporary files.
    fn output(&self) -> Result<PathBuf, Error> {
        if let Some(output) = &self.output {
            return Ok(output.clone());
        }
        let here = Path::new(".");
        let writable = nix::unistd::access(here, nix::unistd::AccessFlags::W_OK).is_ok();
        let folder = if writable { PathBuf::new() } else { std::env::temp_dir() };
        let mut names =
            std::iter::once("here.ttvm".to_string()).chain((2..).map(|n| format!("here-{n}.ttvm")));
        let free = names.find(|name| !folder.join(name).exists());
        Ok(folder.join(free.expect("there is no end of names")))
    }
}

/// Whether standard input is `/dev/null`.
fn is_empty_input() -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |path: &str| std::fs::metadata(path).map(|file| file.rdev()).ok();
    of("/dev/null").is_some_and(|null| null != 0 && of("/proc/self/fd/0") == Some(null))
}
