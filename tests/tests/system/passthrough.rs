//! Tests devices of a host that are passed through to a guest in the lab. Stock drivers in the guest use the
//! devices' ports, registers, interrupts and DMA. The recordings must replay outside of the lab, without any
//! device.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use tests::guests::{BUSYBOX_GENERIC, GENERIC_ELF, repository};
use tests::program::ttvm;

/// Size of the NVMe disk in bytes.
const DISK_BYTES: usize = 4 << 20;

/// The commands of a guest that works with its devices, in one line. The `edu` device in slot 3 writes to memory
/// that the guest never gave to it. Bytes go through an echoing serial adapter and come back. The same bytes go
/// through a serial port at 0x2e8, whose interrupt only the guest has. An NVMe disk is read, written, and read
/// again. Each wait may take ten minutes: on a busy host, a serial port in the lab can need more than one minute
/// for 16 KiB.
const GUEST: &str = r#"
load() { while read m; do insmod /lib/modules/$m 2>/dev/null; done </lib/modules/$1; }
ready() { n=0; while [ ! -e $1 ] && [ $n -lt 6000 ]; do sleep 0.1; n=$((n+1)); done; }
cd /sys/bus/pci/devices/0000:00:03.0
B=$(head -n 1 resource | cut -d' ' -f1)
printf '\007' | dd of=config bs=1 seek=4 conv=notrunc 2>/dev/null
devmem $((B+4)) 32 0x12345678
echo edu $(devmem $B 32) $(devmem $((B+4)) 32)
devmem $((B+128)) 64 0x40000
devmem $((B+136)) 64 0x2000000
devmem $((B+144)) 64 4096
devmem $((B+152)) 64 3
load usb
ready /dev/ttyUSB0
stty -F /dev/ttyUSB0 raw -echo
dd if=/dev/urandom of=/u bs=1024 count=$KIB 2>/dev/null
(cat /dev/ttyUSB0 >/b &)
cat /u >/dev/ttyUSB0
n=0; while [ $(wc -c </b) -lt $((KIB*1024)) ] && [ $n -lt 6000 ]; do sleep 0.1; n=$((n+1)); done
cmp /u /b && echo echoed $(wc -c </b)
stty -F /dev/ttyS3 raw -echo 115200
(cat /dev/ttyS3 >/c &)
cat /u >/dev/ttyS3
n=0; while [ $(wc -c </c) -lt $((KIB*1024)) ] && [ $n -lt 6000 ]; do sleep 0.1; n=$((n+1)); done
cmp /u /c && echo through the port
grep ^3: /proc/tty/driver/serial
load nvme
ready /dev/nvme0n1
dd if=/dev/urandom of=/a bs=4096 count=4 2>/dev/null
echo disk $(md5sum </dev/nvme0n1)
dd if=/a of=/dev/nvme0n1 bs=4096 seek=9 2>/dev/null
sync; echo 3 >/proc/sys/vm/drop_caches
dd if=/dev/nvme0n1 bs=4096 skip=9 count=4 2>/dev/null | cmp - /a && echo stored
"#;

/// The commands of a guest that reads its `edu` device until the device is gone.
const LOOKING: &str = r#"
B=$(head -n 1 /sys/bus/pci/devices/0000:00:03.0/resource | cut -d' ' -f1)
echo looking
n=0; while [ $(devmem $B 32) = 0x010000ED ] && [ $n -lt 6000 ]; do sleep 0.1; n=$((n+1)); done
echo edu $(devmem $B 32)
"#;

/// The commands of a guest that reads its NVMe disk while the host resets the disk. The driver misses an answer, sets
/// the disk up again, and continues.
const RESETTING: &str = r#"
while read m; do insmod /lib/modules/$m 2>/dev/null; done </lib/modules/nvme
n=0; while [ ! -e /dev/nvme0n1 ] && [ $n -lt 6000 ]; do sleep 0.1; n=$((n+1)); done
echo 2000 >/sys/class/nvme/nvme0/nvme0c0n1/queue/io_timeout
md5sum </dev/nvme0n1 >/sum
echo reading
missed() { dmesg | grep -o 'nvme.*timeout, reset controller'; }
again() { echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/nvme0n1 of=/dev/null bs=64k count=4 2>/dev/null; sleep 0.1; }
n=0; while [ $n -lt 6000 ] && ! missed >/dev/null; do again; n=$((n+1)); done
missed
echo 3 >/proc/sys/vm/drop_caches
md5sum </dev/nvme0n1 | cmp - /sum && echo recovered
"#;

const LAB: &str = r#"
mkdir -p /etc
echo 'user:x:65534:65534::/:/bin/sh' >/etc/passwd
guest="--kernel vmlinux --initrd initrd.gz --memory 128M"
refused() {
    "$@" >>out/refused 2>&1
    echo "exit $?" >>out/refused
}
without_driver() {
    for device in /sys/bus/pci/devices/*; do [ -e $device/driver ] || basename $device; done
}
refused ./ttvm run $guest --passthrough pci:0000:77:00.0
refused ./ttvm run $guest --passthrough pci:$(without_driver | tail -n 1)
EDU=$(bind 1234:11e8) && USB=$(bind 8086:7020) && NVME=$(bind 1b36:0010) || exit 1
mv /dev/vfio/vfio /dev/vfio/away
refused ./ttvm run $guest --passthrough pci:$EDU
mv /dev/vfio/away /dev/vfio/vfio
refused ./ttvm run $guest --passthrough pci:$(basename $(dirname $(ls -d /sys/bus/pci/devices/*/driver | grep -v -e $EDU -e $USB -e $NVME | head -n 1)))
refused su user -c "./ttvm run $guest --passthrough pci:$EDU"
refused ./ttvm run $guest --passthrough port:0x70-0x71
refused ./ttvm run $guest --passthrough port:0x378-0x37f,irq=7
refused su user -c "./ttvm run $guest --passthrough port:0x2e8-0x2ef"
./ttvm doctor >out/doctor
record() {
    name=$1
    shift
    ./ttvm record -o $name.ttvm "$@" $guest --cmdline "console=ttyS0 quiet ttvm.run=\"$(tr '\n' ';' <$script)\"" </dev/null >out/console-$name 2>out/told-$name
}
done_with() {
    ./ttvm pack $1.ttvm -o out/$1.packed || exit 1
    rm -r $1.ttvm
}
all="--passthrough pci:$EDU --passthrough pci:$USB --passthrough pci:$NVME --passthrough port:0x2e8-0x2ef,irq=3"
script=guest
record soft --engine soft $all || exit 1
dmesg | grep 'DMA Write.*fault addr 0x2000000' >out/faults
done_with soft
"#;

/// The additional part of the lab's script in the long form. This part uses the same devices under KVM. Then the
/// host resets the disk, and finally removes a device.
const LONG_LAB: &str = r#"
record kvm --engine kvm --slow-clock 8 --wait-for-exit 10000 $all || exit 1
done_with kvm
until_said() {
    while ! grep -q $1 out/console-$script 2>/dev/null; do kill -0 $recorder || exit 1; sleep 0.5; done
}
script=resetting
record resetting --engine soft --passthrough pci:$NVME &
recorder=$!
until_said reading
echo 1 >/sys/bus/pci/devices/$NVME/reset || exit 1
wait $recorder || exit 1
done_with resetting
script=unplugged
record unplugged --engine soft --passthrough pci:$EDU &
recorder=$!
until_said looking
refused ./ttvm run $guest --passthrough pci:$EDU
echo 1 >/sys/bus/pci/devices/$EDU/remove
wait $recorder || exit 1
done_with unplugged
"#;

/// Starts a TCP server that echoes all input, and returns its port.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                if stream.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
        }
    });
    port
}

fn disk() -> Vec<u8> {
    (0..DISK_BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn md5(path: &Path) -> String {
    let output = Command::new("md5sum").arg(path).output().expect("md5sum is there");
    String::from_utf8_lossy(&output.stdout)[..32].to_string()
}

/// Number of KiB that go through each serial port. Serial ports are slow, so `TTVM_TEST_SERIAL_KIB` can set the number.
fn serial_kib(long: bool) -> usize {
    let usual = if long { 16 } else { 1 };
    std::env::var("TTVM_TEST_SERIAL_KIB").map_or(usual, |kib| kib.parse().expect("a number of KiB"))
}

#[test]
fn stock_drivers_work_with_devices_of_the_host_and_replay_needs_none() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let in_directory = |name: &str| directory.path().join(name);
    let long = std::env::var_os("TTVM_LAB_ROUNDS").is_some();
    if !long {
        skip::test(
            "the short form records one guest on the software CPU; TTVM_LAB_ROUNDS=1 records four, one under KVM",
        );
    }
    let kib = serial_kib(long);
    let guest = format!("KIB={kib}{GUEST}");
    for (name, script) in [("guest", &guest[..]), ("resetting", RESETTING), ("unplugged", LOOKING)] {
        std::fs::write(in_directory(name), script.trim_start()).unwrap();
    }
    std::fs::write(in_directory("disk"), disk()).unwrap();
    let (sum, out) = (md5(&in_directory("disk")), in_directory("out"));
    let devices = [
        "-device".to_string(),
        "edu".to_string(),
        "-device".to_string(),
        "piix3-usb-uhci,id=uhci".to_string(),
        "-chardev".to_string(),
        format!("socket,id=echo,host=127.0.0.1,port={}", echo()),
        "-device".to_string(),
        "usb-serial,bus=uhci.0,chardev=echo".to_string(),
        "-chardev".to_string(),
        format!("socket,id=port,host=127.0.0.1,port={}", echo()),
        "-device".to_string(),
        "isa-serial,iobase=0x2e8,irq=5,chardev=port".to_string(),
        "-drive".to_string(),
        format!("file={},if=none,id=disk,format=raw", in_directory("disk").display()),
        "-device".to_string(),
        "nvme,serial=1,drive=disk".to_string(),
    ];
    let file = |name: &str, path: &Path| format!("{name}={}", path.display());
    let lab = Command::new(repository().join("scripts/kvm-lab"))
        .args(["--timeout", "2400", "--iommu", "--out"])
        .arg(&out)
        .args(devices.iter().flat_map(|argument| ["--qemu", argument]))
        .arg(if long { format!("{LAB}{LONG_LAB}") } else { LAB.to_string() })
        .args([
            file("ttvm", &ttvm()),
            file("vmlinux", &GENERIC_ELF.path()),
            file("initrd.gz", &BUSYBOX_GENERIC.path()),
        ])
        .args(["guest", "resetting", "unplugged"].map(|name| file(name, &in_directory(name))))
        .stdin(Stdio::null())
        .output()
        .expect("the lab's script can be started");
    let left = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    let told: Vec<_> = [
        "refused",
        "console-soft",
        "told-soft",
        "console-kvm",
        "told-kvm",
        "console-resetting",
        "told-resetting",
        "console-unplugged",
        "told-unplugged",
    ]
    .map(|name| format!("--- {name}\n{}", left(name)))
    .into();
    let all = format!(
        "{}{}\n{}",
        String::from_utf8_lossy(&lab.stdout),
        String::from_utf8_lossy(&lab.stderr),
        told.join("\n")
    );
    assert!(lab.status.success(), "{all}");

    let refused = left("refused");
    for sentence in [
        "the host has no PCI function 0000:77:00.0",
        "has no driver: load vfio-pci",
        "there is no /dev/vfio/vfio: load the modules",
        "is held by the driver",
        "no permission to open /dev/vfio/",
        "ports 0x70-0x71 cannot be passed through",
        "ports 0x378-0x37f are not one: leave irq= out",
        "cannot open /dev/port: Permission denied",
    ] {
        assert!(refused.contains(sentence), "{sentence}: {refused}");
    }
    assert_eq!(refused.matches("exit 5\n").count(), if long { 9 } else { 8 }, "{refused}");
    let names = if long { &["soft", "kvm", "resetting", "unplugged"][..] } else { &["soft"] };
    for engine in &names[..names.len().min(2)] {
        let console = left(&format!("console-{engine}"));
        let bytes = 1024 * kib;
        let port = format!("uart:16550A port:000002E8 irq:3 tx:{bytes} rx:{bytes} ");
        let (disk, echoed) = (format!("disk {sum}"), format!("echoed {bytes}"));
        for line in [
            "edu 0x010000ED 0xEDCBA987",
            &echoed,
            "through the port",
            &port,
            &disk,
            "stored",
            "exit status 0",
        ] {
            // The first guest has changed the disk, so the second guest, under KVM, reads other contents.
            let is_other_disk = *engine == "kvm" && line.starts_with("disk");
            assert!(console.contains(line) || is_other_disk, "{line}\n{all}");
        }
    }
    for line in [
        "ok   passthrough: IOMMU:",
        "ok   passthrough: PCI functions: 0000:00:",
        "ok   passthrough: ports: 0x200-0x207 ",
    ] {
        assert!(left("doctor").contains(line), "{line}\n{}", left("doctor"));
    }
    assert!(left("faults").contains("DMA Write"), "a device wrote where nothing was shown to it\n{all}");
    if long {
        assert!(refused.contains("is busy: another program has a device of that group"), "{refused}");
        for line in ["timeout, reset controller", "recovered", "exit status 0"] {
            assert!(left("console-resetting").contains(line), "{line}\n{all}");
        }
        assert!(left("told-unplugged").contains("is gone (the host wants it back)"), "{all}");
        assert!(left("console-unplugged").contains("edu 0xFFFFFFFF"), "{all}");
    }

    for &name in names {
        let recording = in_directory(&format!("{name}.ttvm"));
        let run = |arguments: &[&str]| {
            let output = Command::new(ttvm()).args(arguments).output().expect("ttvm starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{arguments:?}: {said}");
            said
        };
        let (packed, recording) = (out.join(format!("{name}.packed")), recording.display().to_string());
        run(&["unpack", &packed.display().to_string(), "-o", &recording]);
        let said = run(&["replay", "--verify", "--quiet", &recording]);
        assert!(said.contains("replayed to the end"), "{name}: {said}");
        if name == "soft" {
            run(&["verify", &recording]);
            run(&["state", &recording, "--at", "97%"]);
        }
    }
}
