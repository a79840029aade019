//! What virtual congestion control would do with a frame.

use super::Traveller;
use crate::frame_trace::Step;
use crate::program::EndpointId;
use crate::segment;
use crate::switch::Switch;
use crate::units::Instant;
use crate::vcc::connection::{Treatment, Why};
use crate::vcc::{Told, option};
use crate::verdict::Reason;

impl Switch {
    /// The frame as it leaves the stage of who sends it; `bytes` holds it.
    pub(super) fn explain_vcc<'a>(
        &self,
        now: Instant,
        from: EndpointId,
        seen: &Traveller<'a>,
        bytes: &'a mut Vec<u8>,
        steps: &mut Vec<Step>,
    ) -> Result<Traveller<'a>, Reason> {
        let Some(told) = self.vcc.explain_send(now, from, (seen.bytes, &seen.layout, &seen.offload)) else {
            return Ok(Traveller { ..*seen });
        };
        let Told { cut, edit, is_refused, treatment, .. } = told;
        if treatment == Treatment::Untouched(Why::Unknown)
            && self.services.is_of_check(self.forward.network(from), from, seen.bytes, &seen.layout)
        {
            return Ok(Traveller { ..*seen });
        }
        steps.push(Step::Vcc(from, Box::new(told)));
        if is_refused {
            return Err(Reason::VccWindow);
        }
        bytes.extend_from_slice(seen.bytes);
        let (mut layout, mut offload) = (seen.layout, seen.offload);
        if cut > 0 {
            let kept = (seen.segments() - cut) as usize;
            bytes.truncate(layout.headers() + kept * usize::from(offload.gso_size));
            layout.end = bytes.len() as u32;
        }
        edit.apply(bytes, &layout, &mut offload);
        if let Some(option) = edit.option {
            bytes.splice(..0, [0; option::LEN]);
            option::write(bytes, &mut layout, &offload, option);
        }
        let wire_bytes = segment::wire_bytes(bytes.len(), &layout, &offload);
        Ok(Traveller { bytes, layout, offload, wire_bytes, ..*seen })
    }

    /// The frame as its receiver gets it.
    pub(super) fn explain_vcc_in<'a>(
        &self,
        now: Instant,
        to: EndpointId,
        seen: &Traveller<'a>,
        steps: &mut Vec<Step>,
    ) -> Traveller<'a> {
        let mut offload = seen.offload;
        if let Some(told) = self.vcc.explain_receive(now, to, (seen.bytes, &seen.layout, &seen.offload)) {
            // Of what is changed, only this decides how it is given to the port.
            told.edit.apply(&mut seen.bytes.to_vec(), &seen.layout, &mut offload);
            steps.push(Step::Vcc(to, Box::new(told)));
        }
        Traveller { offload, ..*seen }
    }
}
