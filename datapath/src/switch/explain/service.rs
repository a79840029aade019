//! What the services' stage would do with a frame.

use super::{Traveller, refuse};
use crate::frame_trace::{self, Step};
use crate::network::Network;
use crate::offload::Offload;
use crate::program::EndpointId;
use crate::segment;
use crate::service::answer::{self, Answer};
use crate::service::translate::{End, set_mac};
use crate::service::{Again, Decision, Known, ServiceId};
use crate::switch::Switch;
use crate::switch::serve::{is_behind_trunk, untagged_for};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{L4, Layout, parse, source};

/// What became of the frame there.
#[derive(Clone, Copy, Default)]
pub(super) struct Served {
    /// It was translated: its bytes are others.
    is_translated: bool,
    /// It may go back to the endpoint that it is from.
    pub may_return: bool,
    /// It goes no further.
    pub is_answered: bool,
    /// It came from outside, and is this endpoint's own from now on.
    pub sender: Option<EndpointId>,
    /// It goes out again, as a frame of this endpoint.
    pub director: Option<EndpointId>,
    /// It became another one: where its headers are, and its offload.
    becomes: Option<(Layout, Offload)>,
}

impl Served {
    /// The frame behind this stage.
    pub fn seen<'a>(self, seen: &Traveller<'a>, bytes: &'a [u8]) -> Traveller<'a> {
        let bytes = if self.is_translated { bytes } else { seen.bytes };
        let Some((layout, offload)) = self.becomes else { return Traveller { bytes, ..*seen } };
        Traveller { bytes, layout, offload, wire_bytes: segment::wire_bytes(bytes.len(), &layout, &offload), ..*seen }
    }
}

impl Switch {
    /// `bytes` becomes the frame as it is translated.
    pub(super) fn explain_service(
        &self,
        now: Instant,
        network: Network,
        from: Option<EndpointId>,
        seen: &Traveller<'_>,
        bytes: &mut Vec<u8>,
        steps: &mut Vec<Step>,
    ) -> Result<Served, Reason> {
        if !self.services.are_in(network) || is_behind_trunk(from, &seen.layout) {
            return Ok(Served::default());
        }
        let decision = self.services.decide(now, network, from, seen.bytes, &seen.layout);
        let concerned = self.services.concerned(&decision).map_or(ServiceId(u32::MAX), |(service, _)| service);
        let (layout, offload) = (&seen.layout, &seen.offload);
        let reached = |known: &Known| self.services.reached(&known.key, known.backend);
        let mut say = |what| steps.push(Step::Service(concerned, what));
        let is_outside = from.is_none();
        let director = match self.services.director_of(&decision) {
            Ok(director) => director,
            Err(reason) => return refuse(steps, reason).map(|()| Served::default()),
        };
        // Who is here pays for itself.
        let (director, has_director) = (director.filter(|_| is_outside), director.is_some());
        let mut served = Served { is_translated: true, director, ..Served::default() };
        let is_sought = matches!(decision, Decision::Seek(_));
        let turns = |known: &Known| match is_outside {
            true => self.services.would_turn_around(now, known, is_sought),
            false => Ok(None),
        };
        bytes.extend_from_slice(seen.bytes);
        match decision {
            Decision::Pass => return Ok(Served::default()),
            Decision::Forward(known) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Known(ip, port));
                }
                let turned = match is_outside {
                    true => match self.services.would_turn_on(now, &known) {
                        Ok(turned) => turned,
                        Err(reason) => return refuse(steps, reason).map(|()| served),
                    },
                    false => None,
                };
                served.may_return = self.services.is_hairpin(&known);
                served.director = self.explain_ask(&known, turned, served.may_return, bytes, (layout, offload));
            }
            Decision::Back(known) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Back(ip, port));
                }
                served.may_return = self.services.is_hairpin(&known);
                self.services.to_client(&known, served.may_return, bytes, layout, offload);
            }
            Decision::Choose(key, again) => {
                let Some(backend) = self.services.would_choose(now, &key, from, again) else {
                    say(frame_trace::Served::Down);
                    return match self.services.when_down(&key) {
                        Some((service, crate::service::WhenDown::Reset)) => {
                            let is_tcp = seen.layout.l4 == L4::Tcp;
                            let answer = if is_tcp { Answer::Reset(service) } else { Answer::PortUnreachable(service) };
                            match self.explain_answer(now, from, answer, seen) {
                                Ok(()) => Ok(Served { is_answered: true, ..served }),
                                Err(reason) => refuse(steps, reason).map(|()| served),
                            }
                        }
                        _ => refuse(steps, Reason::ServiceDown).map(|()| served),
                    };
                };
                if !self.services.would_fit(now, &key, from, again) {
                    return refuse(steps, Reason::ServiceFull).map(|()| served);
                }
                // It has no entry yet.
                let known = Known::new(key, backend);
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::New(ip, port));
                }
                let turned = match turns(&known) {
                    Ok(turned) => turned,
                    Err(reason) => return refuse(steps, reason).map(|()| served),
                };
                served.may_return = self.services.is_hairpin(&known);
                served.director = self.explain_ask(&known, turned, served.may_return, bytes, (layout, offload));
            }
            Decision::Hold(_) | Decision::Held(_) => {
                say(frame_trace::Served::Held);
                served.is_answered = true;
            }
            Decision::Seek(key) => {
                let Some(backend) = self.services.would_seek(&key) else {
                    return refuse(steps, Reason::ServiceUnknown).map(|()| served);
                };
                if !self.services.would_fit(now, &key, from, None) {
                    return refuse(steps, Reason::ServiceFull).map(|()| served);
                }
                let known = Known::new(key, backend);
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Sought(ip, port));
                }
                let turned = match turns(&known) {
                    Ok(turned) => turned,
                    Err(reason) => return refuse(steps, reason).map(|()| served),
                };
                served.may_return = self.services.is_hairpin(&known);
                served.director = self.explain_ask(&known, turned, served.may_return, bytes, (layout, offload));
            }
            Decision::Hear(known, _) => {
                if !self.services.would_fit(now, &known.key, None, None) {
                    return refuse(steps, Reason::ServiceFull).map(|()| served);
                }
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Heard(ip, port));
                }
                served.may_return = self.services.is_hairpin(&known);
                self.services.to_client(&known, served.may_return, bytes, layout, offload);
            }
            Decision::Direct(known) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Direct(ip, port));
                }
                return Ok(Served::default());
            }
            Decision::Retry(known, failure) => {
                let again = Again { avoid: known.backend, failure, tries: 0 };
                let asker = self.client(now, network, &known, seen.bytes);
                let chosen = self.services.would_choose(now, &known.key, asker, Some(again));
                let sender = asker.filter(|_| is_outside);
                let Some(syn) = self.services.syn(&known, seen.bytes, &untagged_for(sender, layout)) else {
                    return refuse(steps, Reason::ServiceRetry).map(|()| served);
                };
                let Some(backend) = chosen else {
                    let is_error = layout.l4 != L4::Tcp;
                    if let Some((ip, port)) = reached(&known) {
                        let what = if is_error { frame_trace::Served::Error } else { frame_trace::Served::Back };
                        say(what(ip, port));
                    }
                    served.director = self.services.director(&known).filter(|_| is_outside);
                    if is_error {
                        self.services.error(&known, false, bytes, layout, offload);
                    } else {
                        served.may_return = self.services.is_hairpin(&known);
                        self.services.to_client(&known, served.may_return, bytes, layout, offload);
                    }
                    self.put_own_back(now, from, seen, bytes);
                    return Ok(served);
                };
                if !self.services.would_fit(now, &known.key, asker, Some(again)) {
                    return refuse(steps, Reason::ServiceFull).map(|()| served);
                }
                let known = Known::new(known.key, backend);
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Retry(ip, port));
                }
                let turned = match asker {
                    Some(_) => None,
                    None => match self.services.would_turn_around(now, &known, false) {
                        Ok(turned) => turned,
                        Err(reason) => return refuse(steps, reason).map(|()| served),
                    },
                };
                bytes.clear();
                bytes.extend_from_slice(syn.bytes());
                let Ok(layout) = parse(bytes) else { return refuse(steps, Reason::Malformed).map(|()| served) };
                served.becomes = Some((layout, syn.offload));
                served.sender = sender;
                served.director = self.explain_ask(&known, turned, false, bytes, (&layout, &syn.offload));
                served.may_return = true;
            }
            Decision::Deny(known) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Denied(ip, port));
                }
                return refuse(steps, Reason::ServiceRetry).map(|()| served);
            }
            Decision::Disown(known) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Direct(ip, port));
                }
                return refuse(steps, Reason::ServiceUnknown).map(|()| served);
            }
            Decision::Cut(known, is_client) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Cut(ip, port));
                }
                served.may_return = self.services.is_hairpin(&known);
                self.services.cut_bytes(&known, is_client, bytes, layout, offload);
                let len = answer::cut(bytes, layout).unwrap_or_default();
                bytes.truncate(len);
                let Ok(layout) = parse(bytes) else { return refuse(steps, Reason::Malformed).map(|()| served) };
                served.becomes = Some((layout, Offload::default()));
            }
            Decision::Fragment(id) => {
                self.services.fragment(id, bytes, layout, offload);
                served.may_return = true;
            }
            Decision::Error(known, to_backend) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Error(ip, port));
                }
                self.services.error(&known, to_backend, bytes, layout, offload);
            }
            Decision::Refuse(known) => {
                if let Some((ip, port)) = reached(&known) {
                    say(frame_trace::Served::Error(ip, port));
                }
                self.services.error(&known, false, bytes, layout, offload);
            }
            Decision::Answer(answer) => {
                if let Err(reason) = self.explain_answer(now, from, answer, seen) {
                    return refuse(steps, reason).map(|()| served);
                }
                say(frame_trace::Served::Answer(answer.name()));
                served.is_answered = true;
            }
            Decision::Check(_) => {
                say(frame_trace::Served::Check);
                served.is_answered = true;
            }
            Decision::Drop(reason) => return refuse(steps, reason).map(|()| served),
        }
        if served.becomes.is_none() {
            if from.is_some() && has_director {
                self.services.set_own_mac(network, bytes, layout);
            }
            self.put_own_back(now, from, seen, bytes);
        }
        Ok(served)
    }

    /// A client's frame becomes the one that its backend is asked with; who pays, where it goes out
    /// again.
    fn explain_ask(
        &self,
        known: &Known,
        turned: Option<(EndpointId, u16)>,
        may_return: bool,
        bytes: &mut [u8],
        (layout, offload): (&Layout, &Offload),
    ) -> Option<EndpointId> {
        self.services.to_backend(known, may_return, bytes, layout, offload);
        let (director, port) = turned?;
        // One that is new has no port yet.
        self.services.ask_from(known, port, bytes, layout, offload);
        Some(director)
    }

    /// As [`Switch::keep_own`].
    fn put_own_back(&self, now: Instant, from: Option<EndpointId>, seen: &Traveller<'_>, bytes: &mut [u8]) {
        if from.is_some() && self.asker(now, from, bytes, &seen.layout).is_none() {
            set_mac(bytes, End::Source, source(seen.bytes));
        }
    }

    /// Whether an answer would be given.
    fn explain_answer(
        &self,
        now: Instant,
        from: Option<EndpointId>,
        answer: Answer,
        seen: &Traveller<'_>,
    ) -> Result<(), Reason> {
        if from.is_none() && !self.services.would_answer(now, answer) {
            return Err(Reason::ServiceBudget);
        }
        if answer.is_asked(seen.bytes, &seen.layout) { Ok(()) } else { Err(Reason::Unreachable) }
    }
}
