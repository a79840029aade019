//! Strict reading of TOML tables: every key is asked for by name, once; a key that nobody asked for
//! is an error that suggests the nearest.
//!
//! Nothing here stops at the first fault: a value that cannot be read is reported and counts as
//! absent.

use crate::place::{Locations, Place};
use crate::problem::{Problem, nearest};
use crate::units::Wrong;
use datapath::units::Both;
use std::collections::BTreeSet;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Turns a value into what it means, or says what is wrong with it.
pub(super) type Parse<T> = fn(&DeValue<'_>) -> Result<T, Wrong>;

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub problems: Vec<Problem>,
    /// The places of values that could not be read.
    pub hidden: BTreeSet<Place>,
    pub locations: Locations,
}

/// A table that is being read.
pub(super) struct Table<'a> {
    entries: &'a DeTable<'a>,
    pub place: Place,
    known: Vec<&'static str>,
}

impl<'a> Table<'a> {
    pub fn new(entries: &'a DeTable<'a>, place: Place) -> Self {
        Table { entries, place, known: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        self.entries.get(key)
    }

    /// Whether `key` is a text.
    pub fn is_text(&self, key: &str) -> bool {
        self.entries.get(key).is_some_and(|value| value.get_ref().is_str())
    }

    /// Whether the table has `key`, which must be read as well.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }
}

impl Reader {
    /// Reports a value that cannot be used.
    fn wrong(&mut self, place: Place, span: Range<usize>, wrong: Wrong) {
        let key = self.locations.describe(&place);
        self.hidden.insert(place.clone());
        self.problems.push(Problem {
            span: Some(span),
            key,
            hides: true,
            ..Problem::error(place, wrong.message, wrong.remedy)
        });
    }

    /// The value of `key`, if it is there and good.
    pub fn get<T>(&mut self, table: &mut Table<'_>, key: &'static str, parse: Parse<T>) -> Option<T> {
        let value = table.take(key)?;
        self.parse(value, &table.place.key(key), parse)
    }

    /// Refuses those of `keys` that are there, for the reason that `why` gives.
    pub fn refuse(&mut self, table: &mut Table<'_>, keys: &[&'static str], why: Parse<()>) {
        for key in keys {
            if table.has(key) {
                self.get(table, key, why);
            }
        }
    }

    fn parse<T>(&mut self, value: &Spanned<DeValue<'_>>, place: &Place, parse: Parse<T>) -> Option<T> {
        self.locations.record(place, value.span());
        match parse(value.get_ref()) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.wrong(place.clone(), value.span(), wrong);
                None
            }
        }
    }

    /// The value of `key`, which must be there. `such_as` is what to write.
    pub fn need<T>(&mut self, table: &mut Table<'_>, key: &'static str, such_as: &str, parse: Parse<T>) -> Option<T> {
        if table.entries.contains_key(key) {
            return self.get(table, key, parse);
        }
        table.known.push(key);
        let span = self.locations.span(&table.place).unwrap_or(0..0);
        self.wrong(
            table.place.key(key),
            span,
            Wrong::new(format!("`{key}` is missing"), format!("add {key} = {such_as}")),
        );
        None
    }

    /// The name of the table's item; it is remembered for messages.
    pub fn name(&mut self, table: &mut Table<'_>, such_as: &str) -> String {
        self.name_as(table, such_as, super::values::name)
    }

    /// The same, of items whose names have rules of their own.
    pub fn name_as(&mut self, table: &mut Table<'_>, such_as: &str, parse: Parse<String>) -> String {
        if let Some(DeValue::String(text)) = table.entries.get("name").map(Spanned::get_ref) {
            self.locations.record_name(&table.place, text);
        }
        self.need(table, "name", such_as, parse).unwrap_or_default()
    }

    /// The values of `key`: one, or a list of them.
    pub fn list<T>(&mut self, table: &mut Table<'_>, key: &'static str, parse: Parse<T>) -> Vec<T> {
        let Some(value) = table.take(key) else { return Vec::new() };
        let place = table.place.key(key);
        let Some(items) = value.get_ref().as_array() else {
            return self.parse(value, &place, parse).into_iter().collect();
        };
        self.locations.record(&place, value.span());
        items.iter().enumerate().filter_map(|(i, item)| self.parse(item, &place.item(i), parse)).collect()
    }

    /// The same of a key that must be there, with something in it. `such_as` is what to write.
    pub fn need_list<T>(&mut self, table: &mut Table<'_>, key: &'static str, such_as: &str, parse: Parse<T>) -> Vec<T> {
        let Some(value) = table.entries.get(key) else {
            return self.need(table, key, such_as, parse).into_iter().collect();
        };
        let values = self.list(table, key, parse);
        // Where there is something that could not be read, that has been said.
        if value.get_ref().as_array().is_some_and(|items| items.is_empty()) {
            let wrong = Wrong::new(format!("`{key}` is an empty list"), format!("write {key} = {such_as}"));
            self.wrong(table.place.key(key), value.span(), wrong);
        }
        values
    }

    /// The values of `key` for both directions: one for both, or `{ egress = .., ingress = .. }`,
    /// of which one may be left out.
    pub fn both<T: Copy>(&mut self, table: &mut Table<'_>, key: &'static str, parse: Parse<T>) -> Both<Option<T>> {
        let Some(value) = table.take(key) else {
            return Both { egress: None, ingress: None };
        };
        let place = table.place.key(key);
        if let Some(entries) = value.get_ref().as_table() {
            self.locations.record(&place, value.span());
            let mut table = Table::new(entries, place);
            let both =
                Both { egress: self.get(&mut table, "egress", parse), ingress: self.get(&mut table, "ingress", parse) };
            self.close(table);
            return both;
        }
        let value = self.parse(value, &place, parse);
        Both { egress: value, ingress: value }
    }

    /// The table that is the value of `key`.
    pub fn table<'a>(&mut self, table: &mut Table<'a>, key: &'static str) -> Option<Table<'a>> {
        let value = table.take(key)?;
        let place = table.place.key(key);
        self.locations.record(&place, value.span());
        match value.get_ref().as_table() {
            Some(entries) => Some(Table::new(entries, place)),
            None => {
                let wrong = Wrong::new(format!("`{key}` is not a table"), format!("write [{}]", header(&place)));
                self.wrong(place, value.span(), wrong);
                None
            }
        }
    }

    /// The tables that are the value of `key`, written `[[key]]` each.
    pub fn tables<'a>(&mut self, table: &mut Table<'a>, key: &'static str) -> Vec<Table<'a>> {
        let Some(value) = table.take(key) else { return Vec::new() };
        let place = table.place.key(key);
        self.locations.record(&place, value.span());
        let advice = format!("write [[{}]] before each {key}", header(&place));
        let Some(items) = value.get_ref().as_array() else {
            self.wrong(place, value.span(), Wrong::new(format!("`{key}` is not a list of tables"), advice));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (i, item) in items.iter().enumerate() {
            self.locations.record(&place.item(i), item.span());
            let Some(entries) = item.get_ref().as_table() else {
                self.wrong(place, item.span(), Wrong::new(format!("`{key}` is not a list of tables"), advice));
                return Vec::new();
            };
            tables.push(Table::new(entries, place.item(i)));
        }
        tables
    }

    /// Reports the keys that were not asked for.
    pub fn close(&mut self, table: Table<'_>) {
        for (key, value) in table.entries {
            let name = key.get_ref().as_ref();
            if table.known.contains(&name) {
                continue;
            }
            let remedy = match nearest(name, table.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the keys here are {}", table.known.join(", ")),
            };
            let place = table.place.key(name.to_owned());
            self.locations.record(&place, value.span());
            let key_text = self.locations.describe(&place);
            self.problems.push(Problem {
                span: Some(key.span()),
                key: key_text,
                ..Problem::error(place, format!("unknown key `{name}`"), remedy)
            });
        }
    }
}

/// How the header of a table at `place` is written: its keys without numbers.
fn header(place: &Place) -> String {
    let text = place.to_string();
    let mut out = String::new();
    let mut inside = false;
    for c in text.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            c if !inside => out.push(c),
            _ => {}
        }
    }
    out
}
