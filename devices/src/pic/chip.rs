//! One 8259A.

const ICW1: u8 = 0x10;
const ICW1_NEED_ICW4: u8 = 0x01;
const ICW1_SINGLE: u8 = 0x02;
const ICW1_LEVEL: u8 = 0x08;
const ICW4_AUTO_EOI: u8 = 0x02;
const ICW4_SPECIAL_FULLY_NESTED: u8 = 0x10;
const OCW3: u8 = 0x08;
const OCW3_POLL: u8 = 0x04;
const SPURIOUS: u8 = 7;

/// The initialisation word that the data port expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Nothing is expected: the data port is the mask register.
    Mask,
    Icw2,
    Icw3,
    Icw4,
}

/// All registers of an 8259A.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    /// Levels of the inputs.
    pub(super) inputs: u8,
    /// Edges seen and not yet taken into service (edge-triggered inputs only).
    pub(super) edges: u8,
    pub(super) in_service: u8,
    pub(super) mask: u8,
    pub(super) elcr: u8,
    /// ICW1 bit 3: every input is level triggered.
    pub(super) all_level: bool,
    /// Bits 7:3 of the vectors.
    pub(super) vector_base: u8,
    pub(super) expected: Expected,
    pub(super) icw1: u8,
    pub(super) auto_eoi: bool,
    pub(super) special_fully_nested: bool,
    pub(super) special_mask: bool,
    pub(super) rotate_on_auto_eoi: bool,
    /// Whether reads of the command port give ISR instead of IRR.
    pub(super) read_in_service: bool,
    /// Whether the next read of either port is a poll.
    pub(super) poll: bool,
    /// The input with the lowest priority. The input with the next number has the highest priority.
    pub(super) lowest: u8,
    /// The bit of the input to which the slave is wired, while the slave requests an interrupt; otherwise 0.
    pub(super) cascade: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Pic8259 {
    s: Registers,
}

impl Pic8259 {
    pub fn new(vector_base: u8, elcr: u8) -> Pic8259 {
        let s = Registers {
            inputs: 0,
            edges: 0,
            in_service: 0,
            mask: 0xFF,
            elcr,
            all_level: false,
            vector_base,
            expected: Expected::Mask,
            icw1: 0,
            auto_eoi: false,
            special_fully_nested: false,
            special_mask: false,
            rotate_on_auto_eoi: false,
            read_in_service: false,
            poll: false,
            lowest: 7,
            cascade: 0,
        };
        Pic8259 { s }
    }

    /// The registers.
    pub fn registers(&self) -> Registers {
        self.s
    }

    /// A chip with these registers.
    pub fn with_registers(mut s: Registers) -> Pic8259 {
        // Only this field can have an impossible value, because the chip has only three bits for this field.
        s.lowest &= 7;
        Pic8259 { s }
    }

    pub fn elcr(&self) -> u8 {
        self.s.elcr
    }

    pub fn set_elcr(&mut self, value: u8) {
        self.s.elcr = value;
        self.s.edges &= !self.level_inputs();
    }

    pub fn read(&mut self, offset: u16) -> u8 {
        if std::mem::take(&mut self.s.poll) {
            return self.poll();
        }
        match offset {
            0 if self.s.read_in_service => self.s.in_service,
            0 => self.requests(),
            _ => self.s.mask,
        }
    }

    pub fn write(&mut self, offset: u16, value: u8) {
        match offset {
            0 if value & ICW1 != 0 => self.write_icw1(value),
            0 if value & OCW3 != 0 => self.write_ocw3(value),
            0 => self.write_ocw2(value),
            _ => self.write_data(value),
        }
    }

    /// Drives the inputs that are wired to devices.
    pub fn set_inputs(&mut self, inputs: u8) {
        let rising = inputs & !self.s.inputs;
        self.s.edges |= rising & !self.level_inputs();
        self.s.inputs = inputs;
    }

    /// Drives the input to which the slave is wired. This input acts as a level, whatever the trigger mode.
    /// The slave lowers its output in each acknowledge cycle, so no request is lost or seen twice.
    pub fn set_cascade(&mut self, input: u8, level: bool) {
        self.s.cascade = u8::from(level) << input;
    }

    /// The input to be served next; `None` if no request has a higher priority than all inputs in service.
    pub fn request(&self) -> Option<u8> {
        let s = &self.s;
        let candidates = self.requests() & !s.mask;
        if s.special_mask {
            // In special mask mode, an input in service blocks only itself.
            return self.highest(candidates & !s.in_service);
        }
        let input = self.highest(candidates)?;
        let beats = self.highest(s.in_service).is_none_or(|busy| {
            // In special fully nested mode a slave in service may interrupt again.
            let nested = s.special_fully_nested && busy == input && s.cascade >> input & 1 != 0;
            nested || self.rank(input) < self.rank(busy)
        });
        beats.then_some(input)
    }

    /// Runs an acknowledge cycle. Returns the acknowledged input, and the vector. `None` means a spurious interrupt.
    pub fn acknowledge(&mut self) -> (Option<u8>, u8) {
        let Some(input) = self.request() else { return (None, self.s.vector_base | SPURIOUS) };
        self.s.edges &= !(1 << input);
        if self.s.auto_eoi {
            if self.s.rotate_on_auto_eoi {
                self.s.lowest = input;
            }
        } else {
            self.s.in_service |= 1 << input;
        }
        (Some(input), self.s.vector_base | input)
    }

    fn poll(&mut self) -> u8 {
        self.acknowledge().0.map_or(0, |input| 0x80 | input)
    }

    /// The level-triggered inputs.
    pub fn level_inputs(&self) -> u8 {
        if self.s.all_level { 0xFF } else { self.s.elcr }
    }

    /// The interrupt request register (IRR): a bit for each input that requests an interrupt.
    pub fn requests(&self) -> u8 {
        self.s.edges | self.s.inputs & self.level_inputs() | self.s.cascade
    }

    /// Writes ICW1, which starts initialisation: mask, service and edge detection are cleared, priorities are reset.
    fn write_icw1(&mut self, value: u8) {
        let s = &mut self.s;
        s.icw1 = value;
        s.all_level = value & ICW1_LEVEL != 0;
        s.expected = Expected::Icw2;
        s.edges = 0;
        s.in_service = 0;
        s.mask = 0;
        s.lowest = 7;
        s.special_mask = false;
        s.read_in_service = false;
        s.poll = false;
        s.auto_eoi = false;
        s.special_fully_nested = false;
        s.rotate_on_auto_eoi = false;
    }

    fn write_data(&mut self, value: u8) {
        let s = &mut self.s;
        let after_icw3 = if s.icw1 & ICW1_NEED_ICW4 != 0 { Expected::Icw4 } else { Expected::Mask };
        match s.expected {
            Expected::Mask => s.mask = value,
            Expected::Icw2 => {
                s.vector_base = value & 0xF8;
                s.expected = if s.icw1 & ICW1_SINGLE != 0 { after_icw3 } else { Expected::Icw3 };
            }
            // ICW3 has no effect, because the board wires the slave to input 2.
            Expected::Icw3 => s.expected = after_icw3,
            Expected::Icw4 => {
                s.auto_eoi = value & ICW4_AUTO_EOI != 0;
                s.special_fully_nested = value & ICW4_SPECIAL_FULLY_NESTED != 0;
                s.expected = Expected::Mask;
            }
        }
    }

    fn write_ocw3(&mut self, value: u8) {
        let s = &mut self.s;
        s.poll = value & OCW3_POLL != 0;
        match value & 3 {
            2 => s.read_in_service = false,
            3 => s.read_in_service = true,
            _ => {}
        }
        match value >> 5 & 3 {
            2 => s.special_mask = false,
            3 => s.special_mask = true,
            _ => {}
        }
    }

    /// Writes OCW2: bits 7:5 are rotate, specific, end of interrupt; bits 2:0 name an input.
    fn write_ocw2(&mut self, value: u8) {
        let named = value & 7;
        match value >> 5 {
            0 => self.s.rotate_on_auto_eoi = false,
            1 => self.end_of_interrupt(self.highest_in_service(), false),
            3 => self.end_of_interrupt(Some(named), false),
            4 => self.s.rotate_on_auto_eoi = true,
            5 => self.end_of_interrupt(self.highest_in_service(), true),
            6 => self.s.lowest = named,
            7 => self.end_of_interrupt(Some(named), true),
            // Command 2 is "no operation".
            _ => {}
        }
    }

    fn end_of_interrupt(&mut self, input: Option<u8>, rotate: bool) {
        let Some(input) = input else { return };
        self.s.in_service &= !(1 << input);
        if rotate {
            self.s.lowest = input;
        }
    }

    fn highest_in_service(&self) -> Option<u8> {
        let s = &self.s;
        let candidates = if s.special_mask { s.in_service & !s.mask } else { s.in_service };
        self.highest(candidates)
    }

    /// The rank of an input: 0 for the highest priority, 7 for the lowest.
    fn rank(&self, input: u8) -> u8 {
        input.wrapping_sub(self.s.lowest + 1) & 7
    }

    /// The input of `inputs` with the highest priority.
    fn highest(&self, inputs: u8) -> Option<u8> {
        (0..8).filter(|input| inputs >> input & 1 != 0).min_by_key(|&input| self.rank(input))
    }
}
