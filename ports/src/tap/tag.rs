//! Whose a TAP device is, written on the device itself.

use std::fmt;

/// Whose device it is: the alias `levada:INSTANCE:ENDPOINT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Name of the daemon's configuration, without colons.
    pub instance: String,
    /// Name of the endpoint.
    pub endpoint: String,
}

/// Behind the tag of a device that Levada took IPv6 from.
pub(super) const WITHOUT_IPV6: &str = " (without IPv6)";

impl Tag {
    pub(crate) fn parse(alias: &str) -> Option<Tag> {
        let alias = alias.strip_suffix(WITHOUT_IPV6).unwrap_or(alias);
        let (instance, endpoint) = alias.strip_prefix("levada:")?.split_once(':')?;
        Some(Tag { instance: instance.to_owned(), endpoint: endpoint.to_owned() })
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "levada:{}:{}", self.instance, self.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_as_it_was_written() {
        let tag = Tag { instance: "demo".into(), endpoint: "red:1".into() };
        assert_eq!(Tag::parse(&format!("{tag}{WITHOUT_IPV6}")).as_ref(), Some(&tag));
        assert_eq!(Tag::parse(&tag.to_string()), Some(tag));
        for alias in ["", "levada", "levada:", "levada:demo", "xlevada:demo:red", "uplink of levada:demo:red"] {
            assert_eq!(Tag::parse(alias), None, "{alias:?}");
        }
    }
}
