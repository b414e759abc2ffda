//! Serves one client from its first byte to its last, and one client after the other.
//!
//! ```text
//!            packet             request to move
//!   waiting ───────► library ──────────────────► the target moves ── stop ──► reply ──► waiting
//!      ▲                │
//!      └──── reply ◄────┘
//! ```
//!
//! The library gives up at the first packet that it rejects. This module answers such a packet with an error, and
//! replaces the library by a new instance with the same handshake.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::rc::Rc;

use gdbstub::common::Tid;
use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::{GdbStubStateMachine, GdbStubStateMachineInner, state};
use gdbstub::stub::{DisconnectReason, GdbStub, GdbStubError};

use crate::adapter::Adapter;
use crate::condition::parse_packet;
use crate::frame::{Event, MAX_PACKET_BYTES, encode_console_into, encode_error_into, encode_into};
use crate::link::{Link, Transport};
use crate::listener::{ListenError, Listener};
use crate::target::{DebugTarget, Thread};

/// How a session ended. The target stays at the position where the client left it, without the client's breakpoints and
/// watchpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// gdb detached.
    Detached,
    /// gdb sent `kill`.
    Killed,
    /// The client closed the connection without a request.
    Closed,
    /// The connection broke. The text is the error.
    Lost(String),
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionEnd::Detached => f.write_str("gdb has detached"),
            SessionEnd::Killed => f.write_str("gdb has ended the session"),
            SessionEnd::Closed => f.write_str("gdb has closed the connection"),
            SessionEnd::Lost(why) => write!(f, "the connection to gdb is lost: {why}"),
        }
    }
}

/// Serves one client after the other, until `keep_going` returns `false` for the end of a session.
///
/// # Errors
/// If the operating system accepts no more connections. Errors of a session end only that session.
pub fn serve(
    listener: &Listener,
    target: &mut dyn DebugTarget,
    mut keep_going: impl FnMut(&SessionEnd) -> bool,
) -> Result<(), ListenError> {
    loop {
        let stream = listener.accept()?;
        log::info!("gdb is connected");
        let end = serve_stream(stream, target);
        log::info!("{end}");
        if !keep_going(&end) {
            return Ok(());
        }
    }
}

/// Serves one client on a connected stream until the session ends.
pub fn serve_stream(stream: impl Transport, target: &mut dyn DebugTarget) -> SessionEnd {
    let mut adapter = Adapter::new(target, Link::new(stream));
    let mut session = Session::new(&mut adapter);
    let end = session.run(&mut adapter).unwrap_or_else(|error| SessionEnd::Lost(error.to_string()));
    adapter.finish();
    end
}

/// Output of the library, collected to be sent in one piece. The library writes to one clone, and the session sends
/// from the other.
#[derive(Clone, Default)]
struct Outgoing(Rc<RefCell<Vec<u8>>>);

impl Connection for Outgoing {
    type Error = Infallible;

    fn write(&mut self, byte: u8) -> Result<(), Infallible> {
        self.0.borrow_mut().push(byte);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

type Machine<'t> = GdbStubStateMachine<'static, Adapter<'t>, Outgoing>;
type Idle<'t> = GdbStubStateMachineInner<'static, state::Idle<Adapter<'t>>, Adapter<'t>, Outgoing>;
type Running<'t> = GdbStubStateMachineInner<'static, state::Running, Adapter<'t>, Outgoing>;
type LibraryError = GdbStubError<Infallible, Infallible>;

struct Session<'t> {
    /// The library between two packets; `None` only while it handles one.
    library: Option<Idle<'t>>,
    outgoing: Outgoing,
    /// The last reply, for a client that did not understand it.
    last_reply: Vec<u8>,
    /// gdb's feature list (qSupported) if it has `multiprocess`, otherwise `None`. A restarted library must get the
    /// list again.
    supported: Option<Vec<u8>>,
    /// Whether packets are no longer acknowledged.
    no_acks: bool,
}

const NO_ACKS_REQUEST: &[u8] = b"QStartNoAckMode";
const TRACE_REQUEST: &[u8] = b"qTStatus";
/// gdb chooses the thread of the next movement. Newer requests to move name their thread.
const CHOICE_REQUEST: &[u8] = b"Hc";
/// gdb chooses the thread whose registers and memory it reads.
const SHOWN_REQUEST: &[u8] = b"Hg";
/// gdb asks why the target stands still.
const STATUS_REQUEST: &[u8] = b"?";
/// A request that is answered with the word that follows it.
const SYNC_REQUEST: &[u8] = b"qttvm.sync:";
/// A request that gets no answer.
const NOTHING_REQUEST: &[u8] = b"qttvm.nothing";

impl<'t> Session<'t> {
    fn new(adapter: &mut Adapter<'t>) -> Self {
        let outgoing = Outgoing::default();
        Self {
            library: Some(start_library(&outgoing, adapter)),
            outgoing,
            last_reply: Vec::new(),
            supported: None,
            no_acks: false,
        }
    }

    fn run(&mut self, adapter: &mut Adapter<'t>) -> io::Result<SessionEnd> {
        while let Some(event) = adapter.link.next_event()? {
            match event {
                Event::Packet(body) => {
                    if let Some(end) = self.handle(&body, adapter)? {
                        return Ok(end);
                    }
                }
                // The target is not moving, so this ^C came too late. Ignore it.
                Event::Interrupt => {}
                Event::Resend => adapter.link.send(&self.last_reply)?,
                // Without acknowledgements gdb would not send the packet again.
                Event::Damaged if !self.no_acks => adapter.link.send(b"-")?,
                Event::Damaged | Event::TooLong => {
                    log::debug!("gdb sent a damaged or oversized packet");
                    self.reply_error("the packet is damaged or too long");
                    self.send(adapter)?;
                }
            }
        }
        Ok(SessionEnd::Closed)
    }

    /// Lets the library handle one packet, moves the target if the packet asks for that, and sends the reply.
    /// Returns how the session ended; `None` if the session continues.
    fn handle(&mut self, body: &[u8], adapter: &mut Adapter<'t>) -> io::Result<Option<SessionEnd>> {
        if !is_reasonable(body) {
            self.reply_error("the request is invalid");
            self.send(adapter)?;
            return Ok(None);
        }
        if self.synchronize(body) {
            self.send(adapter)?;
            return Ok(None);
        }
        if body.starts_with(b"qfThreadInfo") {
            // The library also lists threads for other reasons, but this request means that gdb shows the current
            // position to its user.
            adapter.shown();
        }
        if let Some((address, hardware, conditions)) = parse_packet(body) {
            adapter.add_conditional(address, hardware, conditions);
            self.reply(b"OK");
            self.send(adapter)?;
            return Ok(None);
        }
        // gdb sends this request while it connects, and prints console output that comes before the answer.
        if body == TRACE_REQUEST
            && let Some(text) = adapter.take_greeting()
        {
            self.reply(b"");
            let mut outgoing = self.outgoing.0.borrow_mut();
            let answer = outgoing.split_off(usize::from(!self.no_acks));
            encode_console_into(&mut outgoing, &format!("{text}\n"));
            outgoing.extend(answer);
            drop(outgoing);
            self.send(adapter)?;
            return Ok(None);
        }
        if let Some(thread) = body.strip_prefix(CHOICE_REQUEST) {
            adapter.choose_mover(chosen_thread(thread));
        }
        if body == STATUS_REQUEST {
            // Answer the status request here, because the library would always name the first CPU. gdb then reads
            // registers without choosing a thread.
            self.choose_shown(adapter);
            self.reply_status(adapter.selected_cpu());
            self.send(adapter)?;
            return Ok(None);
        }
        if let Some(thread) = body.strip_prefix(SHOWN_REQUEST)
            && is_any_thread(thread)
        {
            // Without this call, the library would choose the first CPU.
            self.choose_shown(adapter);
            self.reply(b"OK");
            self.send(adapter)?;
            return Ok(None);
        }
        let idle = self.library.take().expect("the library is idle between packets");
        let mut outcome = feed(idle, adapter, body);
        if let Ok(GdbStubStateMachine::Running(running)) = outcome {
            // Send the acknowledgement now, because gdb expects it before the move is over.
            self.send(adapter)?;
            outcome = self.move_target(running, adapter);
        }
        let end = self.settle(outcome, body, adapter);
        if adapter.take_abandoned() {
            // Send no reply to an abandoned request: gdb would take it for the answer to its next request.
            self.outgoing.0.borrow_mut().clear();
        }
        self.send(adapter)?;
        Ok(end)
    }

    /// Chooses the selected CPU for requests that read registers and memory. The library's reply is dropped.
    fn choose_shown(&mut self, adapter: &mut Adapter<'t>) {
        let body = [SHOWN_REQUEST, format!("{:x}", adapter.selected_cpu()).as_bytes()].concat();
        let idle = self.library.take().expect("the library is idle between packets");
        let outcome = feed(idle, adapter, &body);
        self.settle(outcome, &body, adapter);
        self.outgoing.0.borrow_mut().clear();
    }

    /// Answers ttvm's own requests, and returns false for all others. With these requests, a client that stopped
    /// waiting for an answer gets in step again. The client sends `SYNC_REQUEST` with a word, which comes back as the
    /// answer. Until the client reads the word, it sends `NOTHING_REQUEST`, which gets no answer and lets the client
    /// read one more packet.
    fn synchronize(&mut self, body: &[u8]) -> bool {
        if let Some(word) = body.strip_prefix(SYNC_REQUEST) {
            self.reply(word);
        } else if body == NOTHING_REQUEST {
            self.outgoing.0.borrow_mut().clear();
            if !self.no_acks {
                self.outgoing.0.borrow_mut().push(b'+');
            }
        } else {
            return false;
        }
        true
    }

    /// Moves the target and lets the library report where and why it stopped.
    fn move_target(
        &mut self,
        running: Running<'t>,
        adapter: &mut Adapter<'t>,
    ) -> Result<Machine<'t>, LibraryError> {
        let reason = adapter.perform();
        let text = adapter.take_console();
        if !text.is_empty() {
            encode_console_into(&mut self.outgoing.0.borrow_mut(), &text);
        }
        let registers = adapter.frame_registers();
        let mut registers = registers.iter().map(|(number, bytes)| (*number, bytes.as_slice()));
        running.report_stop_with_regs(adapter, reason, &mut registers)
    }

    /// Prepares for the next packet and returns `None`, or returns how the session ended.
    fn settle(
        &mut self,
        outcome: Result<Machine<'t>, LibraryError>,
        body: &[u8],
        adapter: &mut Adapter<'t>,
    ) -> Option<SessionEnd> {
        match outcome {
            Ok(GdbStubStateMachine::Idle(idle)) => {
                self.library = Some(idle);
                self.remember_handshake(body);
                if body.starts_with(b"qSupported") {
                    self.offer_conditions();
                }
                if let Some(refusal) = adapter.take_refusal() {
                    self.reply_error(&refusal.0);
                }
                None
            }
            Ok(GdbStubStateMachine::Disconnected(disconnected)) => {
                let killed = disconnected.get_reason() == DisconnectReason::Kill;
                if killed && body.starts_with(b"vKill") {
                    // Unlike the older `k`, this request waits for an answer.
                    encode_into(&mut self.outgoing.0.borrow_mut(), b"OK");
                }
                Some(if killed { SessionEnd::Killed } else { SessionEnd::Detached })
            }
            // While the target moves, the library gets no bytes and no ^C. So the library should never be in these
            // states here.
            Ok(GdbStubStateMachine::Running(_) | GdbStubStateMachine::CtrlCInterrupt(_)) => {
                self.replace_library(adapter);
                None
            }
            Err(error) => {
                log::debug!("the packet {:?} is refused: {error}", String::from_utf8_lossy(body));
                self.replace_library(adapter);
                None
            }
        }
    }

    fn remember_handshake(&mut self, body: &[u8]) {
        // `multiprocess` is the only feature of gdb that changes the library's replies.
        if body.starts_with(b"qSupported") && body.windows(12).any(|feature| feature == b"multiprocess") {
            self.supported = Some(body.to_vec());
        } else if body == NO_ACKS_REQUEST {
            self.no_acks = true;
        }
    }

    /// Restarts the library after a failure, repeats the handshake, and replies with an error.
    fn replace_library(&mut self, adapter: &mut Adapter<'t>) {
        // The next request must not show the failed request's sentence or partial reply.
        adapter.take_refusal();
        let mut library = start_library(&self.outgoing, adapter);
        let no_acks = self.no_acks.then(|| NO_ACKS_REQUEST.to_vec());
        for body in self.supported.iter().chain(&no_acks) {
            match feed(library, adapter, body) {
                Ok(GdbStubStateMachine::Idle(idle)) => library = idle,
                _ => unreachable!("the library has accepted the same packet before"),
            }
        }
        self.library = Some(library);
        self.reply_error("the request is invalid");
    }

    /// Adds conditional breakpoints, which the library does not know, to the library's list of features.
    fn offer_conditions(&mut self) {
        let mut outgoing = self.outgoing.0.borrow_mut();
        let start = outgoing.iter().position(|&byte| byte == b'$');
        let end = outgoing.iter().rposition(|&byte| byte == b'#');
        if let (Some(start), Some(end)) = (start, end)
            && start < end
        {
            let body = [&outgoing[start + 1..end], b";ConditionalBreakpoints+"].concat();
            outgoing.truncate(start);
            encode_into(&mut outgoing, &body);
        }
    }

    /// Says that the target stands still, and which thread gdb shows.
    fn reply_status(&mut self, thread: Tid) {
        let process = if self.supported.is_some() { "p01." } else { "" };
        self.reply(format!("T05thread:{process}{thread:02x};").as_bytes());
    }

    /// Replies without the library.
    fn reply(&mut self, body: &[u8]) {
        let mut outgoing = self.outgoing.0.borrow_mut();
        outgoing.clear();
        if !self.no_acks {
            outgoing.push(b'+');
        }
        encode_into(&mut outgoing, body);
    }

    /// Replaces the pending output by an error.
    fn reply_error(&mut self, sentence: &str) {
        let mut outgoing = self.outgoing.0.borrow_mut();
        outgoing.clear();
        if !self.no_acks {
            outgoing.push(b'+');
        }
        encode_error_into(&mut outgoing, sentence);
    }

    fn send(&mut self, adapter: &mut Adapter<'t>) -> io::Result<()> {
        std::mem::swap(&mut self.last_reply, &mut self.outgoing.0.borrow_mut());
        self.outgoing.0.borrow_mut().clear();
        adapter.link.send(&self.last_reply)
    }
}

/// The number of a thread, as in `3` or `p1.3`; `None` if the text means any thread or all threads.
fn chosen_thread(text: &[u8]) -> Option<Thread> {
    let text = str::from_utf8(text).ok()?;
    let number = text.rsplit_once('.').map_or(text, |(_, number)| number);
    Thread::from_str_radix(number, 16).ok().filter(|&thread| thread != 0)
}

/// Whether gdb leaves the choice of a thread to the server: `0`, or `p` and a process and `.0`.
fn is_any_thread(text: &[u8]) -> bool {
    text.rsplit(|&byte| byte == b'.').next() == Some(b"0")
}

fn start_library<'t>(outgoing: &Outgoing, adapter: &mut Adapter<'t>) -> Idle<'t> {
    let stub = GdbStub::builder(outgoing.clone())
        .packet_buffer_size(MAX_PACKET_BYTES)
        .build()
        .expect("the library allocates its own packet buffer");
    match stub.run_state_machine(adapter) {
        Ok(GdbStubStateMachine::Idle(idle)) => idle,
        _ => unreachable!("a connection that is a buffer cannot fail, and nothing has been asked yet"),
    }
}

/// Gives the library one whole packet.
fn feed<'t>(idle: Idle<'t>, adapter: &mut Adapter<'t>, body: &[u8]) -> Result<Machine<'t>, LibraryError> {
    let mut packet = Vec::with_capacity(body.len() + 4);
    encode_into(&mut packet, body);
    let mut machine = Machine::Idle(idle);
    for byte in packet {
        machine = match machine {
            Machine::Idle(idle) => idle.incoming_data(adapter, byte)?,
            // The library leaves the state `Idle` only at the last byte of a packet.
            other => return Ok(other),
        };
    }
    Ok(machine)
}

/// Whether the library may get this packet. The library does not check the length of a memory read. An empty reply to
/// an empty read would tell gdb that memory cannot be read at all. The library takes a `vCont` without actions for a
/// request to run all threads.
fn is_reasonable(body: &[u8]) -> bool {
    // A breakpoint with invalid conditions or commands must not become a breakpoint without conditions.
    if (body.starts_with(b"Z0,") || body.starts_with(b"Z1,"))
        && body.contains(&b';')
        && parse_packet(body).is_none()
    {
        return false;
    }
    if body == b"vCont" {
        return false;
    }
    let Some(arguments) = body.strip_prefix(b"m") else { return true };
    let length =
        arguments.splitn(2, |byte| *byte == b',').nth(1).and_then(|digits| str::from_utf8(digits).ok());
    let length = length.and_then(|digits| usize::from_str_radix(digits, 16).ok());
    length.is_some_and(|length| (1..=MAX_PACKET_BYTES / 2).contains(&length))
}
