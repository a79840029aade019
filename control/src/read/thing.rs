//! Reading one thing from its keys as JSON values: as if they stood in a file, by the same reader,
//! with the same messages.

use super::{Reader, Table};
use crate::config::{
    Backend, Bond, BondMember, Cluster, Config, Daemon, Endpoint, Link, Member, Service, Switch, Tenant, Uplink,
};
use crate::place::Place;
use crate::problem::Problem;
use crate::write::Keys;
use serde_json::Value;
use std::fmt::Write as _;
use toml::de::DeTable;

/// Reads settings of the daemon.
pub(crate) fn daemon(name: &str, keys: &Keys) -> Result<Daemon, Vec<Problem>> {
    read(Some(name), keys, &[], super::daemon)
}

/// Reads a switch without what is in it.
pub(crate) fn switch(name: &str, keys: &Keys) -> Result<Switch, Vec<Problem>> {
    read(Some(name), keys, &["uplink", "tenant"], super::switch)
}

/// Reads an uplink.
pub(crate) fn uplink(keys: &Keys) -> Result<Uplink, Vec<Problem>> {
    read(None, keys, &[], super::uplink)
}

/// Reads a bond without its members.
pub(crate) fn bond(keys: &Keys) -> Result<Bond, Vec<Problem>> {
    read(None, keys, &["member"], super::bond::without_members)
}

/// Reads a member of a bond, which is called as its port is.
pub(crate) fn bond_member(keys: &Keys) -> Result<BondMember, Vec<Problem>> {
    read(None, keys, &[], super::bond::member)
}

/// Reads a tenant without its endpoints and services.
pub(crate) fn tenant(name: &str, keys: &Keys) -> Result<Tenant, Vec<Problem>> {
    read(Some(name), keys, &["endpoint", "service"], super::tenant)
}

/// Reads a service without its backends.
pub(crate) fn service(name: &str, keys: &Keys) -> Result<Service, Vec<Problem>> {
    read(Some(name), keys, &["backend"], super::service::service)
}

/// Reads a backend.
pub(crate) fn backend(name: &str, keys: &Keys) -> Result<Backend, Vec<Problem>> {
    read(Some(name), keys, &[], super::service::backend)
}

/// Reads an endpoint.
pub(crate) fn endpoint(name: &str, keys: &Keys) -> Result<Endpoint, Vec<Problem>> {
    read(Some(name), keys, &[], super::endpoint)
}

/// Reads a link.
pub(crate) fn link(name: &str, keys: &Keys) -> Result<Link, Vec<Problem>> {
    read(Some(name), keys, &[], super::link)
}

/// Reads a cluster without its members.
pub(crate) fn cluster(keys: &Keys) -> Result<Cluster, Vec<Problem>> {
    read(None, keys, &["member"], super::cluster::cluster)
}

/// Reads a member of the cluster.
pub(crate) fn member(name: &str, keys: &Keys) -> Result<Member, Vec<Problem>> {
    read(Some(name), keys, &[], super::cluster::member)
}

/// Reads a whole configuration.
pub(crate) fn document(document: &Keys) -> Result<Config, Vec<Problem>> {
    let mut text = String::new();
    write_keys(&mut text, document);
    let reading = super::read(&text);
    if reading.problems.is_empty() { Ok(reading.config) } else { Err(reading.problems) }
}

/// `inner` are keys that have a thing of their own.
fn read<T>(
    name: Option<&str>,
    keys: &Keys,
    inner: &[&'static str],
    thing: fn(&mut Reader, Table<'_>) -> T,
) -> Result<T, Vec<Problem>> {
    let wrong = |key: &str, message: String, remedy: &str| {
        Err(vec![Problem { key: key.to_owned(), ..Problem::error(Place::root().key(key.to_owned()), message, remedy) }])
    };
    if name.is_some() && keys.contains_key("name") {
        return wrong(
            "name",
            "a name cannot be changed".to_owned(),
            "it is part of the path; delete the one and add the other",
        );
    }
    if let Some(key) = inner.iter().find(|key| keys.contains_key(**key)) {
        return wrong(key, format!("`{key}` is not a key here"), "what is in a thing has an action of its own");
    }
    let mut text = name.map_or_else(String::new, |name| format!("name = \"{name}\"\n"));
    write_keys(&mut text, keys);
    let mut reader = Reader::default();
    let (root, errors) = DeTable::parse_recoverable(&text);
    if let Some(error) = errors.first() {
        return wrong(
            "",
            format!("a value has no form in TOML: {}", error.message()),
            "use text, whole numbers, true, false, lists and tables",
        );
    }
    let read = thing(&mut reader, Table::new(root.get_ref(), Place::root()));
    // A key that is only to have its default is not in the text; whether it exists shows when it is
    // read with any value at all.
    for (key, _) in keys.iter().filter(|(_, value)| value.is_null()) {
        let mut line = name.map_or_else(String::new, |name| format!("name = \"{name}\"\n"));
        write_text(&mut line, key);
        line.push_str("=0\n");
        let (root, _) = DeTable::parse_recoverable(&line);
        let mut probe = Reader::default();
        thing(&mut probe, Table::new(root.get_ref(), Place::root()));
        let place = Place::root().key(key.clone());
        reader
            .problems
            .extend(probe.problems.into_iter().filter(|p| p.place == place && p.message.starts_with("unknown key")));
    }
    if reader.problems.is_empty() { Ok(read) } else { Err(reader.problems) }
}

/// A line for each key but those that are to have their default.
fn write_keys(text: &mut String, keys: &Keys) {
    for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
        write_text(text, key);
        text.push('=');
        write_value(text, value);
        text.push('\n');
    }
}

fn write_value(text: &mut String, value: &Value) {
    match value {
        // Not a word of TOML: it becomes an error.
        Value::Null => text.push_str("null"),
        Value::Bool(_) | Value::Number(_) => {
            let _ = write!(text, "{value}");
        }
        Value::String(string) => write_text(text, string),
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_value(text, item);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(entries) => {
            text.push('{');
            for (i, (key, value)) in entries.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write_text(text, key);
                text.push('=');
                write_value(text, value);
            }
            text.push('}');
        }
    }
}

/// A basic string (TOML 1.0): everything that could end it or is a control character is escaped.
fn write_text(text: &mut String, string: &str) {
    text.push('"');
    for c in string.chars() {
        if c == '"' || c == '\\' || c.is_control() {
            let _ = write!(text, "\\u{:04x}", c as u32);
        } else {
            text.push(c);
        }
    }
    text.push('"');
}
