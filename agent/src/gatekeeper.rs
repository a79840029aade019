//! The receiving side, controller `gatekeeper`: as Gatekeeper published it, to compare with.
//!
//! Every 10 ms it looks what each ingress queue dropped. Where the mean of the last ten samples is
//! above D, the agent of the host whose endpoint sent the last dropped frame is notified, and
//! halves everything that endpoint sends (LIM); each further notification halves again. Without
//! them LIM grows back linearly ([`super::leases`]). Parameters, and what the paper leaves open:
//! [`Gatekeeper`].

use super::Counters;
use super::directory::Directory;
use super::events::QueueSample;
use super::message::{Pair, Say};
use super::post::Post;
use super::settings::Gatekeeper;
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;
use std::collections::BTreeMap;

/// Most samples that are averaged.
const MOST_SAMPLES: usize = super::settings::MOST_SAMPLES as usize;

/// The drops of one ingress queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// Bytes dropped in each of the last samples, and where the next goes.
    dropped: [u64; MOST_SAMPLES],
    next: usize,
    /// In the sample that goes on.
    open: u64,
    last: Option<Mac>,
    notified: Option<Instant>,
}

/// Notifies hosts of senders that cause drops.
#[derive(Debug, Default)]
pub(super) struct Controller {
    /// Queues that dropped something within the last samples.
    queues: BTreeMap<u32, Queue>,
    /// When the sample that goes on began.
    since: Option<Instant>,
    is_busy: bool,
}

impl Controller {
    /// Takes in what the queues dropped since it was called last.
    pub fn sample(
        &mut self,
        now: Instant,
        settings: &Gatekeeper,
        queues: &[QueueSample],
        directory: &Directory,
        post: &mut Post,
        counters: &mut Counters,
    ) {
        let Some(link) = directory.link else { return };
        for sample in queues.iter().filter(|sample| sample.dropped_bytes > 0) {
            if directory.endpoints.get(sample.endpoint.0).is_some() {
                let queue = self.queues.entry(sample.endpoint.0).or_default();
                queue.open += sample.dropped_bytes;
                queue.last = sample.last_dropped.or(queue.last);
            }
        }
        self.is_busy = !queues.is_empty() || !self.queues.is_empty();
        let since = *self.since.get_or_insert(now);
        let span_ns = now.since(since);
        if span_ns < settings.sample_ns {
            return;
        }
        self.since = Some(now);
        let samples = (settings.samples as usize).clamp(1, MOST_SAMPLES);
        let headroom = Rate(link.ingress.0 - link.contended().0);
        let most = headroom.scaled(u64::from(settings.drop_ppm), 1_000_000);
        let most = most.bytes_in(span_ns.saturating_mul(samples as u64));
        self.queues.retain(|&endpoint, queue| {
            queue.dropped[queue.next] = std::mem::take(&mut queue.open);
            queue.next = (queue.next + 1) % samples;
            let dropped: u64 = queue.dropped[..samples].iter().sum();
            let may = queue.notified.is_none_or(|at| now.since(at) >= settings.notify_ns);
            if dropped > most && may && notify(now, endpoint, queue.last, directory, post) {
                queue.notified = Some(now);
                counters.notified += 1;
            }
            dropped > 0 || !may
        });
    }

    /// Forgets queues of endpoints that are no more.
    pub fn revise(&mut self, directory: &Directory) {
        self.queues.retain(|&endpoint, _| directory.endpoints.get(endpoint).is_some());
    }

    /// When the next sample is due; `None` where nothing is going on.
    pub fn poll_timeout(&self, settings: &Gatekeeper) -> Option<Instant> {
        self.since.filter(|_| self.is_busy).map(|since| since.plus_ns(settings.sample_ns))
    }
}

/// Notifies the host of `from` that it sends too much to an own endpoint. False where it cannot be
/// told.
fn notify(now: Instant, endpoint: u32, from: Option<Mac>, directory: &Directory, post: &mut Post) -> bool {
    let (Some(from), Some(endpoint)) = (from, directory.endpoints.get(endpoint)) else { return false };
    let (Some(tenant), Some(&to)) = (directory.tenants.get(endpoint.tenant.0), endpoint.address()) else {
        return false;
    };
    let Some(host) = directory.host_in_network_of(endpoint.tenant, from) else { return false };
    let number = post.number(host);
    let pair = Pair { tenant: &tenant.name, to, from, say: Say::Halve };
    post.write(now, number, 0, true, std::iter::once(pair)) == 1
}
