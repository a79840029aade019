//! Places: where in a configuration something is, whatever form the configuration came in.
//!
//! A check speaks of places (`switch[0].tenant[1].guarantee`); [`Locations`] knows where in the
//! text a place is, and what its items are called.

use crate::config::{Config, Device, Uplink};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// One step into a configuration.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Key(Cow<'static, str>),
    Item(usize),
}

/// The way from the whole configuration to one value in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Place(Vec<Step>);

impl Place {
    /// The whole configuration.
    #[must_use]
    pub fn root() -> Place {
        Place::default()
    }

    /// The value of `key` in the table that is here.
    #[must_use]
    pub fn key(&self, key: impl Into<Cow<'static, str>>) -> Place {
        self.then(Step::Key(key.into()))
    }

    /// The item number `index` (from 0) of the list that is here.
    #[must_use]
    pub fn item(&self, index: usize) -> Place {
        self.then(Step::Item(index))
    }

    fn then(&self, step: Step) -> Place {
        let mut steps = self.0.clone();
        steps.push(step);
        Place(steps)
    }

    /// What contains this; `None` for the whole configuration.
    #[must_use]
    pub fn parent(&self) -> Option<Place> {
        (!self.0.is_empty()).then(|| Place(self.0[..self.0.len() - 1].to_vec()))
    }
}

impl Place {
    /// What contains this, or is this, so many steps from the whole configuration.
    pub(crate) fn within(&self, steps: usize) -> Place {
        Place(self.0.iter().take(steps).cloned().collect())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if i == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Item(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

impl Uplink {
    /// The devices of its ports, with the table that each stands in; the uplink's own is `place`.
    pub(crate) fn devices(&self, place: &Place) -> Vec<(Place, &Device)> {
        let Some(bond) = &self.bond else { return vec![(place.clone(), &self.device)] };
        let list = place.key("bond").key("member");
        bond.members.iter().enumerate().map(|(n, member)| (list.item(n), &member.device)).collect()
    }
}

/// The network namespaces that a configuration names, each with where.
#[must_use]
pub fn namespaces(config: &Config) -> Vec<(Place, &str)> {
    let mut devices = Vec::new();
    for (s, switch) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(s);
        devices.extend(switch.uplink.iter().flat_map(|uplink| uplink.devices(&place.key("uplink"))));
        for (t, tenant) in switch.tenants.iter().enumerate() {
            let list = place.key("tenant").item(t).key("endpoint");
            devices.extend(tenant.endpoints.iter().enumerate().map(|(e, one)| (list.item(e), &one.device)));
        }
    }
    let named = devices.into_iter().filter_map(|(place, device)| Some((place.key("netns"), device.netns.as_deref()?)));
    named.collect()
}

/// Where the places of one configuration are in its text (byte ranges), and the names of its items.
#[derive(Debug, Default)]
pub struct Locations {
    spans: BTreeMap<Place, Range<usize>>,
    names: BTreeMap<Place, String>,
}

impl Locations {
    /// The names of a configuration that was not read from text.
    pub(crate) fn of(config: &Config) -> Locations {
        let mut locations = Locations::default();
        let root = Place::root();
        for (i, link) in config.links.iter().enumerate() {
            locations.record_name(&root.key("link").item(i), &link.name);
        }
        for (i, member) in config.cluster.iter().flat_map(|cluster| &cluster.members).enumerate() {
            let place = root.key("cluster").key("member").item(i);
            locations.record_name(&place, &member.name);
            for (i, endpoint) in member.endpoints.iter().enumerate() {
                locations.record_name(&place.key("endpoint").item(i), &endpoint.name);
            }
            for (i, service) in member.services.iter().enumerate() {
                locations.record_name(&place.key("service").item(i), &service.name);
            }
        }
        for (i, switch) in config.switches.iter().enumerate() {
            let place = root.key("switch").item(i);
            locations.record_name(&place, &switch.name);
            for (i, member) in switch.uplink.iter().flat_map(|uplink| &uplink.bond).flat_map(|b| &b.members).enumerate()
            {
                locations.record_name(&place.key("uplink").key("bond").key("member").item(i), &member.name());
            }
            for (i, tenant) in switch.tenants.iter().enumerate() {
                let place = place.key("tenant").item(i);
                locations.record_name(&place, &tenant.name);
                for (i, endpoint) in tenant.endpoints.iter().enumerate() {
                    locations.record_name(&place.key("endpoint").item(i), &endpoint.name);
                }
            }
        }
        locations
    }

    pub(crate) fn record(&mut self, place: &Place, span: Range<usize>) {
        self.spans.insert(place.clone(), span);
    }

    pub(crate) fn record_name(&mut self, place: &Place, name: &str) {
        self.names.insert(place.clone(), name.to_owned());
    }

    /// Where `place` is, or where what contains it is.
    #[must_use]
    pub fn span(&self, place: &Place) -> Option<Range<usize>> {
        let mut place = place.clone();
        loop {
            if let Some(span) = self.spans.get(&place) {
                return Some(span.clone());
            }
            place = place.parent()?;
        }
    }

    /// The place in words that a person finds again: `switch "s1", tenant "red", guarantee`.
    #[must_use]
    pub fn describe(&self, place: &Place) -> String {
        let mut text = String::new();
        for depth in 1..=place.0.len() {
            let part = Place(place.0[..depth].to_vec());
            match &part.0[depth - 1] {
                Step::Key(key) => {
                    let separator = if depth == 1 { "" } else { ", " };
                    let _ = write!(text, "{separator}{key}");
                }
                Step::Item(index) => {
                    let _ = match self.names.get(&part) {
                        Some(name) => write!(text, " \"{name}\""),
                        None => write!(text, " number {}", index + 1),
                    };
                }
            }
        }
        text
    }
}
