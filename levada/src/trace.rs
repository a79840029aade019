//! `levada trace`: what becomes of real frames, or would become of a described one, stage by stage,
//! with what decided (`docs/howto/watching.md`).

mod capture;
mod described;

use crate::api::trace::Described;
use crate::api::trace::{TraceReply, TraceRequest, Traced, TracedStep};
use crate::client::Client;
use crate::client::Instance;
use crate::error::{Failure, print};
pub use capture::SNAP_BYTES;
use capture::hex;
use clap::Args;
use control::plan::Plan;
use datapath::frame_trace::{FrameTrace, Names};
use datapath::program::{EndpointId, PortId};
use datapath::service::ServiceId;
use datapath::verdict::Verdict;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// Most frames of one trace.
pub const MOST_FRAMES: u32 = 1000;
/// Longest time of one trace, in seconds.
pub const MOST_SECONDS: u32 = 60;

/// The names of one switch.
struct Called<'a>(&'a Plan, usize);

impl Names for Called<'_> {
    fn endpoint(&self, endpoint: EndpointId) -> String {
        let Called(plan, switch) = *self;
        let switch = &plan.switches[switch];
        let known = switch.program.endpoints.get(endpoint.0).is_some();
        if known { switch.endpoint_path(endpoint) } else { format!("endpoint {}", endpoint.0) }
    }

    fn service(&self, service: ServiceId) -> String {
        let Called(plan, switch) = *self;
        crate::services::path(&plan.switches[switch], service).unwrap_or_else(|| format!("service {}", service.0))
    }

    fn port(&self, port: PortId) -> String {
        let Called(plan, switch) = *self;
        let known = plan.switches[switch].ports.get(port.0);
        known.map_or_else(|| format!("port {}", port.0), |port| port.locator.to_string())
    }
}

impl Traced {
    /// A trace through the switch at this place in the plan.
    #[must_use]
    pub fn new(plan: &Plan, switch: usize, at_ns: Option<u64>, frame_trace: &FrameTrace) -> Traced {
        let (fate, reason) = match frame_trace.fate() {
            Verdict::Forwarded => ("forwarded", None),
            Verdict::Dropped(reason) => ("dropped", Some(reason.name().to_owned())),
        };
        let called = Called(plan, switch);
        let steps = frame_trace.lines(&called).map(|(stage, text)| TracedStep { stage: stage.to_owned(), text });
        Traced {
            at_ns,
            switch: plan.switches[switch].name.clone(),
            fate: fate.to_owned(),
            reason,
            steps: steps.collect(),
            length: None,
            bytes: None,
        }
    }

    /// The same of a frame that the switch does not get to see.
    #[must_use]
    pub fn past_the_switch(mut self) -> Traced {
        let text = "the switch does not read it: all stages permit it, so the kernel moves it straight to that port when a socket \
                    of the endpoint sends it";
        self.steps.push(TracedStep { stage: "shortcut".to_owned(), text: text.to_owned() });
        self
    }

    /// The same with the frame itself: how long it is, and the bytes that were kept.
    #[must_use]
    pub fn with_bytes(self, length: usize, bytes: &[u8]) -> Traced {
        Traced { length: Some(length as u32), bytes: Some(hex(bytes)), ..self }
    }

    fn text(&self) -> String {
        let mut out = match self.at_ns {
            Some(ns) => format!("{}.{:06} s  ", ns / 1_000_000_000, ns / 1000 % 1_000_000),
            None => String::new(),
        };
        let why = self.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        let _ = writeln!(out, "switch {}: {}{why}", self.switch, self.fate);
        for step in &self.steps {
            let _ = writeln!(out, "  {:<8}{}", step.stage, step.text);
        }
        out
    }
}

/// `levada trace`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A filter, such as: endpoint red1 and tcp and port 80; with --from the frame: tcp
    /// 10.0.0.1:1000 10.0.0.2:80
    ///
    /// Words of a filter, joined by "and", "or", "not" and brackets: switch NAME, tenant NAME,
    /// endpoint NAME, uplink, forwarded, drop [REASON], tcp, udp, icmp, arp, ip, ip6, vlan [ID],
    /// and with "src" or "dst" before them or not: ether MAC, host ADDRESS[/LENGTH], port NUMBER.
    /// Without a filter, all frames.
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
    /// Print what would happen to a frame from this endpoint (SWITCH/TENANT/ENDPOINT) or uplink
    /// (SWITCH/uplink)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["count", "seconds"])]
    pub from: Option<String>,
    /// The described frame's destination: a MAC address or an endpoint's path
    #[arg(long, value_name = "MAC", requires = "from")]
    pub to: Option<String>,
    /// Its source MAC address, instead of the one that the endpoint has declared
    #[arg(long, value_name = "MAC", requires = "from")]
    pub source: Option<String>,
    /// Bytes of its payload
    #[arg(long, requires = "from")]
    pub length: Option<u32>,
    /// Payload bytes of each segment that it is to be cut into
    #[arg(long, value_name = "BYTES", requires = "from")]
    pub gso: Option<u16>,
    /// Its VLAN tag
    #[arg(long, value_name = "ID", requires = "from")]
    pub vlan: Option<u16>,
    /// The whole frame in hexadecimal digits, instead of a description
    #[arg(long, value_name = "DIGITS", requires = "from", conflicts_with_all = ["to", "source", "length", "gso", "vlan", "words"])]
    pub hex: Option<String>,
    /// End after so many frames
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FRAMES)))]
    pub count: u32,
    /// End after so many seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_SECONDS)))]
    pub seconds: u32,
    /// Write the frames to a pcapng file too, for Wireshark and tshark; the comment of a frame is
    /// its trace
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub pcap: Option<PathBuf>,
    #[command(flatten)]
    pub instance: Instance,
    /// Print JSON (version 1: keys may be added, none changes its meaning)
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    fn request(&self) -> TraceRequest {
        let Some(from) = &self.from else {
            let (filter, bytes) = (self.words.join(" "), self.pcap.is_some());
            return TraceRequest::Frames { filter, count: self.count, seconds: self.seconds, bytes };
        };
        TraceRequest::Frame(Described {
            from: from.clone(),
            hex: self.hex.clone(),
            source: self.source.clone(),
            to: self.to.clone(),
            what: self.words.clone(),
            length: self.length,
            gso: self.gso,
            vlan: self.vlan,
        })
    }
}

/// Traces, prints what was seen, and writes it to a file. What cannot be written is printed all the
/// same.
pub fn trace(arguments: &Arguments) -> Result<(), Failure> {
    let client = Client::new(arguments.instance.name.as_deref())?;
    // Before any frame is waited for.
    let file = arguments.pcap.as_ref().map(|path| File::create(path).map_err(|error| unwritable(path, &error)));
    let file = file.transpose()?;
    let reply: TraceReply = client.post("/v1/trace", &arguments.request())?;
    let saved = match (&arguments.pcap, file) {
        (Some(path), Some(file)) => save(path, file, &reply),
        _ => Ok(()),
    };
    let printed = if arguments.json {
        let text = serde_json::to_string_pretty(&reply).map_err(|error| Failure::Failed(error.to_string()))?;
        print(&(text + "\n"))
    } else {
        let texts: Vec<String> = reply.frames.iter().map(Traced::text).collect();
        print(&if texts.is_empty() { "no frame matched the filter\n".to_owned() } else { texts.join("\n") })
    };
    saved.and(printed)
}

fn save(path: &Path, file: File, reply: &TraceReply) -> Result<(), Failure> {
    let mut file = BufWriter::new(file);
    let written = capture::write(&mut file, reply.epoch_unix_ns.unwrap_or(0), &reply.frames);
    // What is left in the buffer after an error is not written again.
    let _ = file.into_parts();
    written.map(|_| ()).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    Failure::Failed(format!(
        "cannot write the capture to {path}: {error}; choose another FILE for --pcap, with free space and write permission"
    ))
}
