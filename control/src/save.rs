//! Writing a configuration into a file that there is: only what differs is changed, so that the
//! comments, the order and the spelling of people stay.
//!
//! What the file says, and what it is to say, are compared in the form that `write` gives both. A
//! difference is made at the same place of the file. Then the file is read again: what it does not
//! say even so is in [`Saved::left`], and such a text is not to be written.

use crate::action::{Action, between};
use crate::config::Config;
use crate::write::{self, Keys};
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, RawString, Table, TableLike, Value};

/// Lists of things: each has a table of its own.
const LISTS: [&str; 7] = ["switch", "tenant", "endpoint", "service", "backend", "link", "member"];
/// What has a table of its own. Others are written within the line of their key.
const TABLES: [&str; 6] = ["daemon", "vcc", "uplink", "bond", "cluster", "etcd"];
/// Keys that come first in a new table.
const FIRST: [&str; 2] = ["name", "port"];

/// A text that says what is wanted.
#[derive(Debug)]
pub struct Saved {
    /// The text; that of before, where nothing differs or not all can be written.
    pub text: String,
    /// What differed: the actions from what it said to what it says.
    pub actions: Vec<Action>,
    /// What it does not say, since it could not be written at the place where the text has it.
    pub left: Vec<Action>,
}

/// Changes `text`, which was read as `said` without an error, so that it says `wanted`.
///
/// The name of the daemon is not changed.
#[must_use]
pub fn save(text: &str, said: &Config, wanted: &Config) -> Saved {
    let actions = between(said, wanted);
    if actions.is_empty() {
        return Saved { text: text.to_owned(), actions, left: Vec::new() };
    }
    let (before, mut keys) = (write::config(said), write::config(wanted));
    if let (Some(Json::Object(new)), Some(Json::Object(old))) = (keys.get_mut("daemon"), before.get("daemon")) {
        new.extend(old.get("name").map(|name| ("name".to_owned(), name.clone())));
    }
    let mut left = actions.clone();
    for how in [How::KeepDefaults, How::DropDefaults] {
        let Ok(mut document) = text.parse::<DocumentMut>() else { break };
        change_table(how, document.as_table_mut(), &before, &keys);
        let text = document.to_string();
        let checked = crate::load(&text);
        left = between(&checked.config, wanted);
        if left.is_empty() && checked.plan.is_some() {
            return Saved { text, actions, left };
        }
    }
    let left = if left.is_empty() { actions.clone() } else { left };
    Saved { text: text.to_owned(), actions, left }
}

/// What becomes of keys that a changed table has, and that say what would be so without them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    KeepDefaults,
    /// They may no longer stand beside what is new: `mtu` of an uplink that becomes a bond.
    DropDefaults,
}

/// A new file that says `wanted`.
#[must_use]
pub fn write_new(wanted: &Config) -> String {
    let mut document = DocumentMut::new();
    change_table(How::KeepDefaults, document.as_table_mut(), &Keys::new(), &write::config(wanted));
    document.to_string().trim_start().to_owned()
}

/// Makes what says `old` say `new`.
fn change_table(how: How, table: &mut dyn TableLike, old: &Keys, new: &Keys) {
    let has = |key: &str, keys: &Keys| keys.contains_key(key);
    let there: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
    for key in there.iter().filter(|key| !has(key, new) && (how == How::DropDefaults || has(key, old))) {
        table.remove(key);
    }
    let (things, own): (Vec<_>, Vec<_>) = new.iter().partition(|(key, value)| has_tables(key, value));
    let (first, rest): (Vec<_>, Vec<_>) = own.into_iter().partition(|(key, _)| FIRST.contains(&key.as_str()));
    for (key, value) in first.into_iter().chain(rest).chain(things) {
        let before = old.get(key);
        if before == Some(value) {
            continue;
        }
        let is_changed = table.get_mut(key).is_some_and(|item| change_item(how, item, before, value));
        if !is_changed {
            // It is not there, or another kind of value: `limit` as a table may become text.
            table.remove(key);
            table.insert(key, new_item(key, value));
        }
    }
}

/// Makes an item say `new`; false where it has to be replaced.
fn change_item(how: How, item: &mut Item, old: Option<&Json>, new: &Json) -> bool {
    match (old, new) {
        (Some(Json::Object(old)), Json::Object(new)) if item.is_table_like() => {
            item.as_table_like_mut().is_some_and(|table| {
                change_table(how, table, old, new);
                true
            })
        }
        (Some(Json::Array(old)), Json::Array(new)) if is_list(old) && is_list(new) && !old.is_empty() => match item {
            Item::ArrayOfTables(list) => change_tables(how, list, old, new),
            Item::Value(Value::Array(list)) => change_array(how, list, old, new),
            _ => false,
        },
        _ => match item {
            Item::Value(value) if !has_tables("", new) => {
                let decor = value.decor().clone();
                *value = new_value(new);
                *value.decor_mut() = decor;
                true
            }
            _ => false,
        },
    }
}

/// The name of a thing in a list: a bond's member has none but its port.
fn name(thing: &Json) -> Option<&str> {
    thing.get("name").or_else(|| thing.get("port"))?.as_str()
}

/// Whether these are things with names of their own.
fn is_list(list: &[Json]) -> bool {
    let mut names = HashSet::new();
    list.iter().all(|thing| name(thing).is_some_and(|name| names.insert(name)))
}

fn has_tables(key: &str, value: &Json) -> bool {
    match value {
        Json::Object(_) => TABLES.contains(&key),
        Json::Array(list) => {
            !list.is_empty() && list.iter().all(Json::is_object) && (key.is_empty() || LISTS.contains(&key))
        }
        _ => false,
    }
}

/// What happens to a list of things.
struct Difference<'a> {
    /// Of each thing that was there: what it was and what it is to be; nothing where it goes.
    kept: Vec<Option<(&'a Keys, &'a Keys)>>,
    /// What is new.
    added: Vec<&'a Keys>,
    /// For each thing in its new order, the place where it is after the additions; nothing where
    /// that is the order.
    order: Option<Vec<usize>>,
}

fn difference<'a>(old: &'a [Json], new: &'a [Json]) -> Difference<'a> {
    let find = |list: &'a [Json]| -> HashMap<&'a str, &'a Keys> {
        list.iter().filter_map(|thing| Some((name(thing)?, thing.as_object()?))).collect()
    };
    let (before, after) = (find(old), find(new));
    let names = |list: &'a [Json]| list.iter().filter_map(name);
    let kept = names(old).map(|name| Some((*before.get(name)?, *after.get(name)?))).collect();
    let added = names(new).filter(|name| !before.contains_key(name)).filter_map(|name| after.get(name).copied());
    // The order of what has a name means nothing; that of a bond's members does.
    let is_ordered = new.iter().any(|thing| thing.get("name").is_none());
    let order = is_ordered.then(|| {
        let there = names(old).filter(|name| after.contains_key(name));
        let there = there.chain(names(new).filter(|name| !before.contains_key(name)));
        let places: HashMap<&str, usize> = there.enumerate().map(|(place, name)| (name, place)).collect();
        names(new).filter_map(|name| places.get(name).copied()).collect::<Vec<_>>()
    });
    let order = order.filter(|order| !order.is_sorted());
    Difference { kept, added: added.collect(), order }
}

fn change_tables(how: How, list: &mut ArrayOfTables, old: &[Json], new: &[Json]) -> bool {
    if list.len() != old.len() {
        return false;
    }
    let difference = difference(old, new);
    let mut kept = difference.kept.iter();
    for (table, kept) in list.iter_mut().zip(&difference.kept) {
        if let Some((old, new)) = kept.filter(|(old, new)| old != new) {
            change_table(how, table, old, new);
        }
    }
    list.retain(|_| kept.next().is_some_and(Option::is_some));
    for keys in difference.added {
        list.push(new_table(keys));
    }
    if let Some(order) = difference.order {
        // Tables are written by their positions, each behind what was before it.
        let tables: Vec<Table> = order.iter().filter_map(|place| list.get(*place).cloned()).collect();
        let positions: Vec<_> = list.iter().map(Table::position).collect();
        list.clear();
        for (mut table, position) in tables.into_iter().zip(positions) {
            table.set_position(position);
            list.push(table);
        }
    }
    true
}

fn change_array(how: How, list: &mut Array, old: &[Json], new: &[Json]) -> bool {
    if list.len() != old.len() || !list.iter().all(Value::is_inline_table) {
        return false;
    }
    let difference = difference(old, new);
    let mut own = Vec::new();
    let mut behind = Vec::new();
    for value in list.iter() {
        let (before, here) = lines(value.decor().prefix());
        behind.push(before);
        own.push(here);
    }
    let (before, end) = lines(Some(list.trailing()));
    behind.push(before);
    // `behind` has what is on the line behind `[`, then behind each of the values.
    let opening = behind.remove(0);
    let indent = own.last().map_or("", |own| own.rfind('\n').map_or(" ", |line| &own[line..])).to_owned();

    let mut values = Vec::new();
    for (((value, kept), own), behind) in list.iter().zip(&difference.kept).zip(own).zip(behind) {
        let Some((old, new)) = kept else { continue };
        let mut value = value.clone();
        if let Some(table) = value.as_inline_table_mut().filter(|_| old != new) {
            change_table(how, table, old, new);
        }
        values.push((value, own, behind));
    }
    for keys in difference.added {
        values.push((Value::InlineTable(new_inline_table(keys)), indent.clone(), String::new()));
    }
    let values = match difference.order {
        Some(order) => order.iter().filter_map(|place| values.get(*place).cloned()).collect(),
        None => values,
    };
    list.clear();
    let mut line = opening;
    for (mut value, own, behind) in values {
        value.decor_mut().set_prefix(line + &own);
        list.push_formatted(value);
        line = behind;
    }
    list.set_trailing(line + &end);
    true
}

/// What stands before a value of an array, in two: what is on the line of the value before, such as
/// a comment on that, and the rest.
fn lines(text: Option<&RawString>) -> (String, String) {
    let text = text.and_then(RawString::as_str).unwrap_or_default();
    let (behind, own) = text.split_at(text.find('\n').unwrap_or(0));
    (behind.to_owned(), own.to_owned())
}

fn new_item(key: &str, json: &Json) -> Item {
    match json {
        Json::Array(things) if has_tables(key, json) => {
            Item::ArrayOfTables(things.iter().filter_map(Json::as_object).map(new_table).collect())
        }
        Json::Object(keys) if has_tables(key, json) => Item::Table(new_table(keys)),
        _ => Item::Value(new_value(json)),
    }
}

fn new_table(keys: &Keys) -> Table {
    let mut table = Table::new();
    change_table(How::KeepDefaults, &mut table, &Keys::new(), keys);
    table
}

fn new_inline_table(keys: &Keys) -> InlineTable {
    let mut table = InlineTable::new();
    change_table(How::KeepDefaults, &mut table, &Keys::new(), keys);
    table
}

fn new_value(json: &Json) -> Value {
    match json {
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| Value::from(number.as_f64().unwrap_or_default()), Value::from)
        }
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => Value::Array(list.iter().map(new_value).collect()),
        Json::Object(keys) => Value::InlineTable(new_inline_table(keys)),
        // TOML has none, and `write` writes none.
        Json::Null => Value::from(false),
    }
}
