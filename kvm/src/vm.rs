//! The virtual machine around the vCPU: RAM, CPUID, and the filter of model-specific registers.

use cpu::CpuModel;
use guest_ram::{GuestRam, PAGE_SIZE, PageFlags};
use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MEM_LOG_DIRTY_PAGES, KVM_MSR_EXIT_REASON_FILTER,
    KVM_MSR_EXIT_REASON_INVAL, KVM_MSR_EXIT_REASON_UNKNOWN, kvm_cpuid_entry2, kvm_enable_cap,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend};

use crate::error::{Error, failed};

/// Three pages that Intel's processors need for real mode. The pages lie below the usual place of the
/// firmware, at addresses without RAM.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// One more page that Intel's processors need for real mode.
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;

/// Ranges of model-specific registers that KVM itself implements as the architecture says: SYSENTER, PAT,
/// EFER and SYSCALL, bases of FS and GS. All other registers exit and are emulated as on the software CPU.
const NATIVE_MSRS: [(u32, u32); 4] =
    [(0x174, 0x176), (0x277, 0x277), (0xc000_0080, 0xc000_0084), (0xc000_0100, 0xc000_0102)];

/// Whether this host has a `/dev/kvm`.
pub fn is_present() -> bool {
    std::path::Path::new("/dev/kvm").exists()
}

/// A virtual machine with RAM.
pub(crate) struct Vm {
    fd: VmFd,
    slots: Vec<Slot>,
    logging: bool,
    /// Flags of RAM's pages, which also keep the mapping alive.
    flags: PageFlags,
}

struct Slot {
    number: u32,
    gpa: u64,
    offset: u64,
    length: u64,
    host: u64,
}

impl Vm {
    /// A machine over `ram`, with one vCPU.
    pub(crate) fn new(ram: &GuestRam, model: CpuModel) -> Result<(Vm, VcpuFd), Error> {
        let kvm = open()?;
        check(&kvm)?;
        let fd = kvm.create_vm().map_err(failed("create a virtual machine"))?;
        fd.set_tss_address(TSS_ADDRESS).map_err(failed("place its real-mode pages"))?;
        fd.set_identity_map_address(IDENTITY_MAP_ADDRESS).map_err(failed("place its identity map"))?;
        let vm = Vm { slots: slots(ram), fd, logging: false, flags: ram.flags().clone() };
        vm.set_slots()?;
        vm.hide_counters();
        vm.disable_quirks();
        vm.filter_msrs()?;
        let vcpu = vm.fd.create_vcpu(0).map_err(failed("create a vCPU"))?;
        vcpu.set_cpuid2(&cpuid(model)?).map_err(failed("set what CPUID says"))?;
        Ok((vm, vcpu))
    }

    fn set_slots(&self) -> Result<(), Error> {
        for slot in &self.slots {
            let region = kvm_userspace_memory_region {
                slot: slot.number,
                flags: if self.logging { KVM_MEM_LOG_DIRTY_PAGES } else { 0 },
                guest_phys_addr: slot.gpa,
                memory_size: slot.length,
                userspace_addr: slot.host,
            };
            // SAFETY: the range is guest RAM. `self.flags` keeps RAM mapped as long as the machine exists, and no code
            // forms references to it.
            unsafe { self.fd.set_user_memory_region(region) }.map_err(failed("give the guest its RAM"))?;
        }
        Ok(())
    }

    /// Marks the pages that the guest wrote since the last call as dirty in RAM's flags. The first call marks all
    /// pages, because KVM logs writes only from then on.
    pub(crate) fn note_written(&mut self) -> Result<(), Error> {
        if !self.logging {
            self.logging = true;
            self.set_slots()?;
            let flags = &self.flags;
            (0..flags.pages()).for_each(|page| flags.set(page, PageFlags::DIRTY));
            return Ok(());
        }
        for slot in &self.slots {
            let bitmap = self
                .fd
                .get_dirty_log(slot.number, slot.length as usize)
                .map_err(failed("say what the guest wrote"))?;
            let first = slot.offset / PAGE_SIZE;
            for (number, mut word) in bitmap.into_iter().enumerate() {
                while word != 0 {
                    let page = first + number as u64 * 64 + u64::from(word.trailing_zeros());
                    self.flags.set(page, PageFlags::DIRTY);
                    word &= word - 1;
                }
            }
        }
        Ok(())
    }

    /// Gives the guest no performance counters. So all counters are left to the host. An older KVM needs no call to
    /// hide counters.
    fn hide_counters(&self) {
        const KVM_CAP_PMU_CAPABILITY: u32 = 212;
        let mut cap = kvm_enable_cap { cap: KVM_CAP_PMU_CAPABILITY, ..Default::default() };
        cap.args[0] = 1;
        if let Err(error) = self.fd.enable_cap(&cap) {
            log::debug!("KVM keeps its virtual performance counters: {error}");
        }
    }

    /// Makes MONITOR and MWAIT undefined if CPUID lacks them, and VMCALL undefined if the processor has another
    /// instruction for hypercalls. By default KVM ignores MONITOR and MWAIT, and rewrites VMCALL. An older KVM does
    /// not know the call, or not all bits.
    fn disable_quirks(&self) {
        const KVM_CAP_DISABLE_QUIRKS2: u32 = 213;
        const FIX_HYPERCALL_INSN: u64 = 1 << 5;
        const MWAIT_NEVER_UD_FAULTS: u64 = 1 << 6;
        let mut cap = kvm_enable_cap { cap: KVM_CAP_DISABLE_QUIRKS2, ..Default::default() };
        cap.args[0] = FIX_HYPERCALL_INSN | MWAIT_NEVER_UD_FAULTS;
        if let Err(error) = self.fd.enable_cap(&cap) {
            log::debug!("KVM keeps its quirks: {error}");
        }
    }

    fn filter_msrs(&self) -> Result<(), Error> {
        let mut cap = kvm_enable_cap { cap: Cap::X86UserSpaceMsr as u32, ..Default::default() };
        cap.args[0] =
            u64::from(KVM_MSR_EXIT_REASON_INVAL | KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_FILTER);
        self.fd.enable_cap(&cap).map_err(failed("give model-specific registers out"))?;
        let ranges = NATIVE_MSRS.map(|(first, last)| MsrFilterRange {
            flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
            base: first,
            msr_count: last - first + 1,
            bitmap: &[0xff],
        });
        self.fd
            .set_msr_filter(MsrFilterDefaultAction::DENY, &ranges)
            .map_err(failed("filter model-specific registers"))
    }
}

/// Opens `/dev/kvm`.
pub(crate) fn open() -> Result<Kvm, Error> {
    Kvm::new().map_err(|error| {
        let error = std::io::Error::from_raw_os_error(error.errno());
        let advice = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "add yourself to the group kvm, or use --engine soft",
            std::io::ErrorKind::NotFound => {
                "this host has no hardware virtualisation, or its module is not loaded: use --engine soft"
            }
            _ => "use --engine soft",
        };
        Error::Device(error, advice)
    })
}

/// Checks the required capabilities.
pub(crate) fn check(kvm: &Kvm) -> Result<(), Error> {
    for (cap, what) in [
        (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
        (Cap::SyncRegs, "KVM_CAP_SYNC_REGS"),
        (Cap::X86UserSpaceMsr, "KVM_CAP_X86_USER_SPACE_MSR"),
        (Cap::X86MsrFilter, "KVM_CAP_X86_MSR_FILTER"),
        (Cap::VcpuEvents, "KVM_CAP_VCPU_EVENTS"),
        (Cap::Debugregs, "KVM_CAP_DEBUGREGS"),
        (Cap::Xsave, "KVM_CAP_XSAVE"),
        (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    ] {
        if !kvm.check_extension(cap) {
            return Err(Error::Lacks(what));
        }
    }
    Ok(())
}

fn slots(ram: &GuestRam) -> Vec<Slot> {
    ram.layout()
        .ranges()
        .enumerate()
        .map(|(number, (gpa, offset, length))| {
            let host = ram.memory().get_host_address(GuestAddress(gpa)).expect("it is RAM") as u64;
            Slot { number: number as u32, gpa, offset, length, host }
        })
        .collect()
}

fn cpuid(model: CpuModel) -> Result<CpuId, Error> {
    let entries: Vec<kvm_cpuid_entry2> = model
        .leaves()
        .iter()
        .map(|&(function, index, [eax, ebx, ecx, edx])| kvm_cpuid_entry2 {
            function,
            index: index.unwrap_or(0),
            flags: if index.is_some() { KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 },
            eax,
            ebx,
            ecx,
            edx,
            ..Default::default()
        })
        .collect();
    CpuId::from_entries(&entries).map_err(|_| Error::Lacks("room for what CPUID says"))
}
