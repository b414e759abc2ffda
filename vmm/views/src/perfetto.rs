//! The part of Perfetto's trace format that a trace of a guest needs, with the names and numbers of
//! `perfetto_trace.proto` (<https://perfetto.dev/docs/reference/trace-packet-proto>). A trace is a sequence of packets.
//! Each packet is written separately, so the whole trace is never in memory.

use std::io::{self, Write};

use prost::Message;

/// The number of the only sequence of packets. The sequence's first packet has a flag for the beginning.
const SEQUENCE: u32 = 1;
const SEQUENCE_BEGINS: u32 = 1;

/// Writes packets.
pub struct Packets<W> {
    to: W,
    begun: bool,
}

impl<W: Write> Packets<W> {
    pub fn new(to: W) -> Packets<W> {
        Packets { to, begun: false }
    }

    /// Appends a packet to the trace.
    pub fn add(&mut self, packet: TracePacket) -> io::Result<()> {
        let flags = (!std::mem::replace(&mut self.begun, true)).then_some(SEQUENCE_BEGINS);
        let packet =
            TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), sequence_flags: flags, ..packet };
        self.to.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

/// Reads back the packets of a trace.
#[cfg(test)]
pub fn read(bytes: &[u8]) -> Vec<TracePacket> {
    Trace::decode(bytes).expect("it was written as one").packet
}

#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<FtraceEventBundle>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub tid: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub thread_name: Option<String>,
}

/// The values of `TrackEvent.Type`.
pub mod kind {
    pub const BEGIN: i32 = 1;
    pub const END: i32 = 2;
    pub const INSTANT: i32 = 3;
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    #[prost(int64, optional, tag = "4")]
    pub int_value: Option<i64>,
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    pub pointer_value: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub sched_switch: Option<SchedSwitch>,
}

/// `SchedSwitchFtraceEvent`, without the priorities.
#[derive(Clone, PartialEq, Message)]
pub struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    pub prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
}
