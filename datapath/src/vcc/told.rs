//! What is done with a frame, and why, without doing it: for traces. The same functions decide as
//! for real frames, on a copy of the connection.

use super::connection::{Connection, Scale, Treatment, Why, Wire, bit};
use super::connections::Key;
use super::segment::{Edit, Segment, codes, ecn, options_in, options_of};
use super::successor::Opening;
use super::{Call, Counters, Effects, Mode, Vcc, handshake, is_authenticated, is_tcp, open, police};
use crate::ids::EndpointId;
use crate::offload::Offload;
use crate::table::Id;
use crate::units::{Direction, Instant};
use crate::wire::{FlowKey, L4, Layout, tcp_flags};
use core::fmt;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Egress: a guest sends it. Ingress: it is for one.
    pub direction: Direction,
    /// What is done for the endpoint.
    pub mode: Mode,
    /// How the connection is treated from this frame on.
    pub treatment: Treatment,
    /// What was negotiated toward the network.
    pub wire: Wire,
    /// The frame as it came.
    pub segment: Segment,
    /// What is changed in it.
    pub edit: Edit,
    /// Segments cut off, since they lie beyond the window that the guest was told.
    pub cut: u32,
    /// Nothing is left of it.
    pub is_refused: bool,
    /// The peer's window scale.
    pub scale: Scale,
    /// The estimate of the marked fraction, in 1/65536.
    pub alpha: u32,
    /// The guest speaks ECN itself and is not trusted to heed marks.
    pub is_deaf: bool,
    /// For how long it waits before the guest has it, in microseconds, where there is room.
    pub waits_us: u32,
}

impl Told {
    fn new(direction: Direction, mode: Mode, segment: Segment) -> Told {
        let treatment = Treatment::Untouched(Why::Unknown);
        let (wire, edit) = (Wire::Plain, Edit::NONE);
        let (cut, is_refused, scale, alpha, is_deaf, waits_us) = (0, false, Scale::default(), 0, false, 0);
        Told { direction, mode, treatment, wire, segment, edit, cut, is_refused, scale, alpha, is_deaf, waits_us }
    }

    fn untouched(self, why: Why) -> Told {
        Told { treatment: Treatment::Untouched(why), ..self }
    }

    fn of(self, connection: &Connection, edit: Edit) -> Told {
        let &Connection { treatment, wire, alpha, scale, .. } = connection;
        Told { treatment, wire, edit, scale, alpha, is_deaf: connection.is(bit::DEAF), ..self }
    }
}

/// What a frame shows this stage.
struct Seen<'a> {
    call: Call,
    bytes: &'a [u8],
    layout: &'a Layout,
    segment: Segment,
    flow: FlowKey,
}

impl Vcc {
    fn see<'a>(
        &self,
        now: Instant,
        endpoint: EndpointId,
        (bytes, layout, offload): (&'a [u8], &'a Layout, &Offload),
    ) -> Option<Seen<'a>> {
        let call = self.call(now, endpoint)?;
        let segment = Segment::of(bytes, layout, offload)?.with_options(options_in(bytes, layout));
        let flow = FlowKey::of(bytes, layout)?;
        Some(Seen { call, bytes, layout, segment, flow })
    }

    /// What [`Vcc::send`] would do; `None` where it has nothing to do with the frame.
    #[must_use]
    pub fn explain_send(&self, now: Instant, from: EndpointId, frame: (&[u8], &Layout, &Offload)) -> Option<Told> {
        let (bytes, layout, offload) = frame;
        let call = self.call(now, from)?;
        if layout.fragment && is_tcp(bytes, layout) && call.policy.mode != Mode::Off {
            let told = Told::new(Direction::Egress, call.policy.mode, Segment::default());
            return Some(Told { is_refused: call.policy.polices, ..told.untouched(Why::Fragment) });
        }
        if is_authenticated(bytes, layout) && call.policy.mode != Mode::Off {
            let segment = Segment { ecn: police::ecn_of(bytes, layout), ..Segment::default() };
            let edit = police::uncapable(&call.policy, &segment, Edit::NONE);
            let told = Told::new(Direction::Egress, call.policy.mode, segment);
            return Some(Told { edit, ..told.untouched(Why::Signed) });
        }
        if layout.l4 != L4::Tcp {
            return None;
        }
        let Seen { mut segment, flow, .. } = self.see(now, from, frame)?;
        let mut told = Told::new(Direction::Egress, call.policy.mode, segment);
        told.edit = police::uncapable(&call.policy, &segment, Edit::NONE);
        let key = Key { endpoint: call.owner.endpoint, flow };
        let found = self.connections.find(&key);
        let known = found.and_then(|id| self.connections.get(id)).copied();
        if call.policy.mode == Mode::Off && (known.is_none() || segment.is_syn()) {
            return None;
        }
        if let Some(connection) = &known {
            told.cut = open::beyond(connection, now, &call.policy, &segment, offload.gso_size);
            if told.cut >= segment.segments {
                told.is_refused = true;
                return Some(told.of(connection, Edit::NONE));
            }
            if told.cut > 0 {
                segment.segments -= told.cut;
                segment.payload = segment.segments * u32::from(offload.gso_size);
                segment.flags &= !(tcp_flags::FIN | tcp_flags::PSH);
            }
        }
        let options = || options_of(bytes, layout);
        if segment.is_syn() {
            return Some(self.told_of_syn(told, &call, (key, found), &segment, &options()));
        }
        Some(Vcc::told_of_sent(told, &call, known, &segment, options))
    }

    fn told_of_syn(
        &self,
        told: Told,
        call: &Call,
        (key, found): (Key, Option<Id>),
        syn: &Segment,
        options: &super::segment::Options,
    ) -> Told {
        let known = |id| self.connections.get(id).copied().unwrap_or_else(|| Connection::new(options));
        match self.opening(call, key, found, syn) {
            Opening::Again(id) => {
                let mut c = known(id);
                let edit = handshake::ask_again(&mut c, &call.policy, syn, options);
                told.of(&c, edit)
            }
            Opening::Crossed(id) => {
                let mut c = known(id);
                let edit = handshake::collide(&mut c, &call.policy, syn, options);
                told.of(&c, edit)
            }
            Opening::Refused => Told { is_refused: true, treatment: Treatment::Opening, ..told },
            Opening::New(key, old) => {
                let (connection, edit) = handshake::ask(&call.policy, syn, options);
                let has_room = old.is_some() || self.connections.may_insert(call.now, call.owner, &connection);
                let is_refused = !has_room && key.flow.is_second();
                if has_room { told.of(&connection, edit) } else { Told { is_refused, ..told.untouched(Why::Full) } }
            }
        }
    }

    fn told_of_sent(
        told: Told,
        call: &Call,
        known: Option<Connection>,
        segment: &Segment,
        options: impl FnOnce() -> super::segment::Options,
    ) -> Told {
        let policy = &call.policy;
        match known {
            Some(c) if segment.is_syn_ack() && !c.is_answered_by(segment) => told,
            Some(mut c) if segment.is_syn_ack() => {
                let edit = handshake::answer(&mut c, policy, segment, &options());
                told.of(&c, edit)
            }
            Some(mut c) => {
                let edit = open::send(&mut c, call.now, policy, segment);
                told.of(&c, edit)
            }
            None => told,
        }
    }

    /// What [`Vcc::receive`] would do, as long as no queue on the way marks the frame; `None` where
    /// it has nothing to do with it.
    #[must_use]
    pub fn explain_receive(&self, now: Instant, to: EndpointId, frame: (&[u8], &Layout, &Offload)) -> Option<Told> {
        let Seen { call, bytes, layout, segment, flow } = self.see(now, to, frame)?;
        let told = Told::new(Direction::Ingress, call.policy.mode, segment);
        if is_authenticated(bytes, layout) && call.policy.mode != Mode::Off {
            return Some(told.untouched(Why::Signed));
        }
        let policy = &call.policy;
        let key = Key { endpoint: call.owner.endpoint, flow: flow.reversed() };
        let found = self.connections.find(&key);
        if policy.mode == Mode::Off && (found.is_none() || segment.is_syn()) {
            return None;
        }
        let of = if segment.is_syn_ack() { self.answered(key, found, &segment) } else { found };
        let known = of.and_then(|id| self.connections.get(id)).copied();
        let options = || options_of(bytes, layout);
        let mut effects = Effects::default();
        let unused = (&mut Counters::default(), &mut effects);
        Some(match known {
            Some(c) if segment.is_syn() && c.treatment == Treatment::Opening && c.is(bit::ACTIVE) => {
                told.untouched(Why::Simultaneous)
            }
            known if segment.is_syn() => {
                let lives = |c: &Connection| !handshake::repeats(c, &segment) && !handshake::gives_way(c);
                let old = known.filter(lives);
                let again = known.filter(|c| handshake::repeats(c, &segment));
                let mut connection = again.unwrap_or_else(|| handshake::offered(policy, &segment, &options()));
                let has_room = known.is_some() || self.connections.may_insert(now, call.owner, &connection);
                let edit = handshake::offer(policy, old.is_none().then_some(&mut connection), &segment, &options());
                let connection = old.unwrap_or(connection);
                if has_room { told.of(&connection, edit) } else { told.untouched(Why::Full) }
            }
            Some(mut c) if segment.is_syn_ack() => {
                if !handshake::is_answered(&c, &segment) {
                    let edit = handshake::cross(&mut c, &options());
                    return Some(Told { scale: c.scale, edit, ..told.untouched(Why::Outside) });
                }
                let edit = handshake::answered(&mut c, policy, &segment, &options());
                told.of(&c, edit)
            }
            Some(mut c) => {
                let edit = open::receive(&mut c, now, policy, &segment, unused);
                let waits_us = if effects.us > 0 && options().has_sack { 0 } else { effects.us };
                Told { waits_us, ..told.of(&c, edit) }
            }
            None => told,
        })
    }
}

impl Why {
    /// The reason in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Why::Signed => "a MAC (TCP-MD5, TCP-AO or AH) covers its header",
            Why::Multipath => "it is one of several flows of Multipath TCP",
            Why::Simultaneous => "both sides open at once",
            Why::Unknown => "its handshake was not seen here",
            Why::Full => "there is no room for its connection",
            Why::Codes => "its handshake's ECN flags are none that a standard has",
            Why::Fragment => "it is a fragment, which hides its numbers",
            Why::Outside => "it acknowledges what the guest has not sent",
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_refused {
            return match self.treatment {
                Treatment::Untouched(why) => write!(f, "refused (vcc-window): {}", why.words()),
                Treatment::Opening if self.segment.is_syn() => {
                    write!(f, "refused (vcc-window): another SYN of its ports is not answered yet")
                }
                Treatment::Opening => write!(f, "refused (vcc-window): its connection is not open yet"),
                _ => write!(f, "refused (vcc-window): it lies beyond the window that the guest was told"),
            };
        }
        match (self.treatment, self.wire) {
            (Treatment::Opening, _) => write!(f, "a connection opens")?,
            (Treatment::Translated, Wire::Accurate) => write!(f, "the switch speaks AccECN for the guest")?,
            (Treatment::Translated, _) => write!(f, "the switch speaks RFC 3168's ECN for the guest")?,
            (Treatment::Native, _) if self.is_deaf => write!(f, "the guest speaks ECN itself, and did not heed marks")?,
            (Treatment::Native, _) => write!(f, "the guest speaks ECN itself")?,
            (Treatment::Plain, _) => write!(f, "without ECN")?,
            (Treatment::Untouched(why), _) => write!(f, "left as it is: {}", why.words())?,
        }
        if self.mode == Mode::Count {
            write!(f, "; counted only")?;
        }
        if self.cut > 0 {
            let all = self.segment.segments;
            write!(
                f,
                "; {} of {all} segments dropped (vcc-window): beyond the window that the guest was told",
                self.cut
            )?;
        }
        self.edit_words(f)
    }
}

impl Told {
    fn edit_words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.edit.ecn, self.segment.ecn) {
            (None, _) => {}
            (Some(ecn::NOT), _) if self.direction == Direction::Egress => write!(f, "; made not ECN-capable")?,
            (Some(_), ecn::CE) => write!(f, "; its mark counted and hidden")?,
            (Some(ecn::NOT), _) => write!(f, "; shown as not ECN-capable")?,
            (Some(_), _) => write!(f, "; made ECN-capable")?,
        }
        let is_syn = self.segment.has(tcp_flags::SYN);
        match (self.edit.codes, is_syn) {
            (None, _) => {}
            (Some(codes::NONE), true) if self.direction == Direction::Egress => write!(f, "; its ECN flags taken out")?,
            (Some(codes::NONE), _) => write!(f, "; its ECN flags hidden")?,
            (Some(codes::ASK_CLASSIC), true) => write!(f, "; asks for RFC 3168's ECN")?,
            (Some(codes::ASK_ACCURATE), true) => write!(f, "; asks for AccECN")?,
            (Some(_), true) => write!(f, "; agrees to ECN")?,
            (Some(counter), false) if self.edit.is_counter => write!(f, "; shows {counter} in the counter of marks")?,
            (Some(flags), false) => {
                if flags & codes::ECE != 0 {
                    write!(f, "; reports marks")?;
                }
                if flags & codes::CWR != 0 {
                    write!(f, "; says that the window was reduced")?;
                }
            }
        }
        if self.edit.strips {
            write!(f, "; its options of Multipath TCP taken out")?;
        }
        if self.edit.option.is_some() {
            write!(f, "; tells how many bytes arrived marked (AccECN's option)")?;
        }
        if self.edit.hides.is_some() {
            write!(f, "; AccECN's option hidden")?;
        }
        if self.waits_us > 0 {
            write!(f, "; waits {} us, as the window is below two segments", self.waits_us)?;
        }
        let (scale, by) = (self.scale.told(), self.scale.lowered_by());
        if self.edit.scale.is_some() {
            write!(f, "; its window scale {} told as {scale}", scale + by)?;
        }
        let Some(window) = self.edit.window else { return Ok(()) };
        if is_syn {
            let all = self.segment.window;
            return write!(f, "; window {all} lowered to {window}, as of others to its peer");
        }
        let all = u64::from(self.segment.window) << (scale + by);
        let told = u64::from(window) << scale;
        if by > 0 && told == all.min(u64::from(u16::MAX) << scale) {
            return write!(f, "; window {all} told by scale {scale}, as {told}");
        }
        write!(f, "; window {all} lowered to {told}")?;
        if self.mode == Mode::Dctcp && self.wire == Wire::Accurate {
            return write!(f, ": {} % marked", (u64::from(self.alpha) * 100) >> 16);
        }
        write!(f, ", since the network marked")
    }
}
