//! Hardware task switches (SDM vol. 3, chapter 8). Task switches exist outside long mode only.
//!
//! The order follows section 8.3: check the new TSS, save the old task, change busy bits and link, then load registers.
//! During the load of the registers, faults are raised in the new task. Segment registers that are not loaded yet
//! have their new selectors but are unusable.

use cpu_model::registers::{cr0, cr4};

use super::descriptor::{Located, null_segment, system_type};
use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::{Break, Delivery, Res};
use crate::exception::{GP, NP, TS};
use crate::flags;
use crate::state::SegReg;

/// The cause of a task switch, which decides the changes to busy bits, NT and the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskSwitch {
    Jump,
    Call,
    /// An interrupt or exception through a task gate.
    Interrupt,
    /// IRET with NT set.
    Return,
}

/// Offsets of the fields of a TSS (SDM vol. 3, figures 8-2 and 8-10).
struct Layout {
    /// Size of a field in bytes.
    size: u64,
    cr3: Option<u64>,
    ip: u64,
    /// Offset of the field of ES. The fields of CS, SS and DS follow. A 32-bit TSS also has fields for FS and GS.
    segments: u64,
    segment_count: usize,
    ldtr: u64,
    /// Smallest limit with which a TSS of this layout is valid.
    least_limit: u32,
}

/// Limit for successive task switches in one step, each to a task that faults at once. A fault can switch to the
/// next such task through a task gate, and such tasks can alternate for ever. A real processor would never stop
/// this. But in ttvm every step must end, so at the limit the CPU shuts down.
const MOST_FAULTING_TASKS: u32 = 16;

const WIDE: Layout =
    Layout { size: 4, cr3: Some(28), ip: 32, segments: 72, segment_count: 6, ldtr: 96, least_limit: 103 };
const NARROW: Layout =
    Layout { size: 2, cr3: None, ip: 14, segments: 34, segment_count: 4, ldtr: 42, least_limit: 43 };
/// Offset of the T flag of a 32-bit TSS: bit 0 of the word before the I/O map's base.
const TRAP_FLAG: u64 = 100;

impl Layout {
    fn of(kind: u8) -> &'static Layout {
        if kind & 8 != 0 { &WIDE } else { &NARROW }
    }
    fn flags(&self) -> u64 {
        self.ip + self.size
    }
    fn registers(&self) -> u64 {
        self.ip + 2 * self.size
    }
}

const SEGMENTS: [SegReg; 6] = [SegReg::Es, SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs];

/// The task state in a TSS.
struct Task {
    cr3: Option<u64>,
    ip: u64,
    flags: u64,
    registers: [u64; 8],
    selectors: [u16; 6],
    ldtr: u16,
    trap: bool,
}

impl Core {
    /// Switches to the task of a TSS selector. `next_rip` is the address at which the old task will resume. An
    /// error code, if given, is pushed on the new task's stack.
    pub(crate) fn task_switch(
        &mut self,
        bus: &mut dyn Bus,
        selector: u16,
        reason: TaskSwitch,
        next_rip: u64,
        error_code: Option<u32>,
    ) -> Res<()> {
        let mut new_tss = self.new_tss(bus, selector, reason)?;
        let descriptor = new_tss.descriptor;
        let layout = Layout::of(descriptor.kind());
        let base = descriptor.base();
        // Before any change, read everything and make sure that the link can be written.
        let task = self.read_task(bus, base, layout)?;
        let nests = matches!(reason, TaskSwitch::Call | TaskSwitch::Interrupt);
        if nests {
            self.check_system_writable(bus, base, 2)?;
        }
        self.save_task(bus, reason, next_rip)?;
        if matches!(reason, TaskSwitch::Jump | TaskSwitch::Return) {
            self.clear_busy(bus)?;
        }
        let old_selector = self.state.tr.selector;
        if nests {
            let address = self.table_address(base, 0);
            self.store_system(bus, address, 2, u64::from(old_selector))?;
        }
        if reason != TaskSwitch::Return {
            self.mark_busy(bus, &mut new_tss)?;
        }
        self.state.tr = new_tss.descriptor.segment(selector);
        self.state.cr0 |= cr0::TS;
        if self.enter_task(bus, layout, &task, nests, error_code).is_err() {
            // The fault is raised in the new task, at its first instruction. The delivery of the fault is a part of
            // the same step.
            let fault = self.exception;
            self.faulting_tasks += 1;
            let endless = self.faulting_tasks > MOST_FAULTING_TASKS;
            let delivered = !endless && self.deliver(bus, Delivery::Exception(fault)).is_ok();
            self.faulting_tasks -= 1;
            if !delivered {
                self.state.shut_down = true;
                self.attention |= attention::HALTED;
            }
        }
        Ok(())
    }

    fn enter_task(
        &mut self,
        bus: &mut dyn Bus,
        layout: &Layout,
        task: &Task,
        nests: bool,
        error_code: Option<u32>,
    ) -> Res<()> {
        self.load_task(bus, layout, task, nests)?;
        if let Some(error_code) = error_code {
            self.push(bus, layout.size, u64::from(error_code))?;
        }
        let code = *self.segment(SegReg::Cs);
        self.check_target(&code, self.rip)?;
        if task.trap {
            // Raise a debug trap (DR6.BT) before the new task's first instruction.
            self.state.pending_debug |= 1 << 15;
            self.update_debug_attention();
        }
        Ok(())
    }

    /// Reads the descriptor of the new TSS and makes the checks of SDM vol. 3, 8.3.
    fn new_tss(&mut self, bus: &mut dyn Bus, selector: u16, reason: TaskSwitch) -> Res<Located> {
        let vector = if reason == TaskSwitch::Return { TS } else { GP };
        if selector & !3 == 0 || selector & 4 != 0 {
            return Err(self.selector_fault(vector, selector));
        }
        let located = self.descriptor(bus, selector, vector)?;
        let descriptor = located.descriptor;
        let wanted = if reason == TaskSwitch::Return {
            [system_type::TSS16_BUSY, system_type::TSS32_BUSY]
        } else {
            [system_type::TSS16_AVAILABLE, system_type::TSS32_AVAILABLE]
        };
        if !descriptor.is_system() || !wanted.contains(&descriptor.kind()) {
            return Err(self.selector_fault(vector, selector));
        }
        if !descriptor.present() {
            return Err(self.selector_fault(NP, selector));
        }
        if descriptor.limit() < Layout::of(descriptor.kind()).least_limit {
            return Err(self.selector_fault(TS, selector));
        }
        Ok(located)
    }

    fn check_system_writable(&mut self, bus: &mut dyn Bus, address: u64, size_bytes: u64) -> Res<()> {
        let address = self.table_address(address, 0);
        let old = self.load_system(bus, address, size_bytes)?;
        self.store_system(bus, address, size_bytes, old)
    }

    fn read_task(&mut self, bus: &mut dyn Bus, base: u64, layout: &Layout) -> Res<Task> {
        let mut field = |offset: u64, size: u64| {
            let address = self.table_address(base, offset);
            self.load_system(bus, address, size)
        };
        let cr3 = match layout.cr3 {
            Some(offset) => Some(field(offset, 4)?),
            None => None,
        };
        let mut task = Task {
            cr3,
            ip: field(layout.ip, layout.size)?,
            flags: field(layout.flags(), layout.size)?,
            registers: [0; 8],
            selectors: [0; 6],
            ldtr: field(layout.ldtr, 2)? as u16,
            trap: layout.cr3.is_some() && field(TRAP_FLAG, 2)? & 1 != 0,
        };
        for (register, number) in task.registers.iter_mut().zip(0..) {
            *register = field(layout.registers() + number * layout.size, layout.size)?;
        }
        for (selector, number) in task.selectors[..layout.segment_count].iter_mut().zip(0..) {
            *selector = field(layout.segments + number * layout.size, 2)? as u16;
        }
        Ok(task)
    }

    /// Saves the running task into the current TSS.
    fn save_task(&mut self, bus: &mut dyn Bus, reason: TaskSwitch, next_rip: u64) -> Res<()> {
        let layout = Layout::of(self.state.tr.kind());
        let mut rflags = self.rflags_bits();
        if reason == TaskSwitch::Return {
            rflags &= !flags::NT;
        }
        let mut fields = vec![(layout.ip, layout.size, next_rip), (layout.flags(), layout.size, rflags)];
        for number in 0..8 {
            let offset = layout.registers() + number * layout.size;
            fields.push((offset, layout.size, self.frame.regs[number as usize]));
        }
        for (number, &register) in (0..).zip(&SEGMENTS[..layout.segment_count]) {
            let selector = u64::from(self.segment(register).selector);
            fields.push((layout.segments + number * layout.size, 2, selector));
        }
        for (offset, size, value) in fields {
            let address = self.table_address(self.state.tr.base, offset);
            self.store_system(bus, address, size, value)?;
        }
        Ok(())
    }

    /// Marks the current task as available again.
    fn clear_busy(&mut self, bus: &mut dyn Bus) -> Res<()> {
        let offset = u64::from(self.state.tr.selector & !7) + 5;
        let address = self.table_address(self.state.gdtr.base, offset);
        let kind = self.load_system(bus, address, 1)?;
        self.store_system(bus, address, 1, kind & !2)
    }

    /// Loads the registers of the new task. Faults of this function are raised in the new task.
    fn load_task(&mut self, bus: &mut dyn Bus, layout: &Layout, task: &Task, nests: bool) -> Res<()> {
        self.load_task_cr3(task)?;
        self.rip = task.ip;
        for (number, &value) in task.registers.iter().enumerate() {
            // A 16-bit TSS loads only the low halves.
            self.frame.regs[number] = match layout.size {
                2 => self.frame.regs[number] & 0xffff_0000 | value,
                _ => value,
            };
        }
        let v86 = layout.size == 4 && task.flags & flags::VM != 0;
        let nested = if nests { flags::NT } else { 0 };
        let cpl = if v86 { 3 } else { (task.selectors[1] & 3) as u8 };
        // Every segment register is unusable until it is loaded. But SS already holds the new privilege level.
        for (register, &selector) in SEGMENTS.into_iter().zip(&task.selectors) {
            self.set_segment(register, null_segment(selector, cpl));
        }
        self.set_rflags(task.flags | nested);
        self.state.dr7 &= !0x155;
        self.debug_registers_changed();
        self.load_task_ldtr(bus, task.ldtr)?;
        if v86 {
            for (register, &selector) in SEGMENTS.into_iter().zip(&task.selectors) {
                let segment = self.real_segment(register, selector);
                self.set_segment(register, segment);
            }
            return Ok(());
        }
        self.load_task_code(bus, task.selectors[1])?;
        self.load_task_stack(bus, task.selectors[2], cpl)?;
        for (register, &selector) in SEGMENTS.into_iter().zip(&task.selectors) {
            if !matches!(register, SegReg::Cs | SegReg::Ss) {
                self.load_segment(bus, register, selector).map_err(|b| self.as_invalid_tss(b))?;
            }
        }
        Ok(())
    }

    /// Turns the #GP of an ordinary load into the #TS of a task switch.
    fn as_invalid_tss(&mut self, reason: Break) -> Break {
        if self.exception.vector == GP {
            self.exception.vector = TS;
        }
        reason
    }

    fn load_task_cr3(&mut self, task: &Task) -> Res<()> {
        if let Some(cr3) = task.cr3
            && self.state.cr0 & cr0::PG != 0
        {
            if self.state.cr4 & cr4::PAE != 0 {
                self.load_pdptes(cr3)?;
            }
            self.state.cr3 = cr3;
            self.paging_changed();
        }
        Ok(())
    }

    fn load_task_ldtr(&mut self, bus: &mut dyn Bus, selector: u16) -> Res<()> {
        self.state.ldtr = null_segment(selector, 0);
        if selector & !3 == 0 {
            return Ok(());
        }
        if selector & 4 != 0 {
            return Err(self.selector_fault(TS, selector));
        }
        let descriptor = self.descriptor(bus, selector, TS)?.descriptor;
        if !descriptor.is_system() || descriptor.kind() != system_type::LDT || !descriptor.present() {
            return Err(self.selector_fault(TS, selector));
        }
        self.state.ldtr = descriptor.segment(selector);
        Ok(())
    }

    fn load_task_code(&mut self, bus: &mut dyn Bus, selector: u16) -> Res<()> {
        if selector & !3 == 0 {
            return Err(self.selector_fault(TS, selector));
        }
        let mut located = self.descriptor(bus, selector, TS)?;
        let code = located.descriptor;
        let rpl = (selector & 3) as u8;
        let fits = if code.is_conforming() { code.dpl() <= rpl } else { code.dpl() == rpl };
        if !code.is_code() || !fits {
            return Err(self.selector_fault(TS, selector));
        }
        if !code.present() {
            return Err(self.selector_fault(NP, selector));
        }
        self.mark_accessed(bus, &mut located)?;
        self.set_segment(SegReg::Cs, located.descriptor.segment(selector));
        Ok(())
    }

    fn load_task_stack(&mut self, bus: &mut dyn Bus, selector: u16, cpl: u8) -> Res<()> {
        if selector & !3 == 0 {
            return Err(self.selector_fault(TS, selector));
        }
        let stack = self.stack_segment_for(bus, selector, cpl, TS)?;
        self.set_segment(SegReg::Ss, stack);
        Ok(())
    }
}
