//! Ethernet addresses (IEEE 802-2014, clause 8), read and written as six pairs of hexadecimal
//! digits.

use core::fmt;
use core::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether this is a group (multicast or broadcast) address.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether every bit is zero, which no interface has.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }

    /// The group of the hellos of bonds that have bridges between them: locally administered, and
    /// forwarded as any other. Between endpoints and the outside nothing to it is passed on.
    pub const BONDS: Mac = Mac([0x03, 0x4c, 0x56, 0x42, 0x4e, 0x44]);

    /// Whether this is one of 01-80-C2-00-00-00 to -0F, which bridges never forward (IEEE
    /// 802.1Q-2018, table 8-1), or [`Mac::BONDS`].
    #[must_use]
    pub fn is_reserved(self) -> bool {
        self.0[..5] == [0x01, 0x80, 0xc2, 0, 0] && self.0[5] < 0x10 || self == Mac::BONDS
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is no MAC address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MacError {
    text: String,
    fault: Fault,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Fault {
    Groups(usize),
    Group(String),
    Mixed,
}

impl fmt::Display for MacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a MAC address: ", self.text)?;
        match &self.fault {
            Fault::Groups(n) => write!(f, "it has {n} parts, not six")?,
            Fault::Group(group) => write!(f, "{group:?} is not two hexadecimal digits")?,
            Fault::Mixed => write!(f, "its parts are separated by ':' and by '-'")?,
        }
        write!(f, "; write it like 52:54:00:12:34:56")
    }
}

impl std::error::Error for MacError {}

impl FromStr for Mac {
    type Err = MacError;

    /// Reads `52:54:00:12:34:56` or `52-54-00-12-34-56`, in upper or lower case.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let fail = |fault| MacError { text: text.to_owned(), fault };
        if text.contains(':') && text.contains('-') {
            return Err(fail(Fault::Mixed));
        }
        let groups = text.split([':', '-']).count();
        if groups != 6 {
            return Err(fail(Fault::Groups(groups)));
        }
        let mut mac = [0; 6];
        for (byte, group) in mac.iter_mut().zip(text.split([':', '-'])) {
            *byte = match group.as_bytes() {
                [a, b] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => u8::from_str_radix(group, 16).ok(),
                _ => None,
            }
            .ok_or_else(|| fail(Fault::Group(group.to_owned())))?;
        }
        Ok(Mac(mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mac = Mac([0x52, 0x54, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(mac.to_string(), "52:54:00:ab:cd:ef");
        for text in ["52:54:00:ab:cd:ef", "52-54-00-AB-CD-EF", "52:54:00:aB:Cd:eF"] {
            assert_eq!(text.parse(), Ok(mac), "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, fault) in [
            ("", "it has 1 parts"),
            ("52:54:00:12:34", "it has 5 parts"),
            ("52:54:00:12:34:56:78", "it has 7 parts"),
            ("52:54:00:12:34:5", "\"5\" is not two"),
            ("52:54:00:12:34:+5", "\"+5\" is not two"),
            ("52:54:00:12:34:é", "\"é\" is not two"),
            ("52:54:00:12:34-56", "separated by ':' and by '-'"),
        ] {
            let error = text.parse::<Mac>().unwrap_err().to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
    }

    #[test]
    fn reserved_are_sixteen() {
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0]).is_reserved());
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0x0f]).is_reserved());
        assert!(!Mac([1, 0x80, 0xc2, 0, 0, 0x10]).is_reserved());
        assert!(!Mac([1, 0x80, 0xc2, 0, 1, 0]).is_reserved());
        assert!(Mac::BONDS.is_reserved() && Mac::BONDS.is_group());
    }
}
