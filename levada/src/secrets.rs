//! Secrets out of files: those that two bonds have, and the keys of load reports.

use crate::system::replace::{Modes, replace};
use datapath::bond::hello::HelloKey;
use ring::digest::{SHA256, digest};
use ring::hmac;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Fewest and most bytes of a secret, blanks at its ends aside.
const LEAST: usize = 16;
const MOST: usize = 4096;
/// What comes before the secret where a key is made of it: keys for anything else are others.
const PURPOSE: &[u8] = b"levada bond hello\0";

/// The key that hellos are hashed with: the first 128 bits of SHA-256 of purpose and secret.
///
/// # Errors
/// In words: the file cannot be read, or what is in it is too short or too long for a secret.
pub fn hello_key(file: &Path) -> Result<HelloKey, String> {
    let shown = file.display();
    let bytes = std::fs::read(file).map_err(|error| {
        let remedy = lend(&error, file).map_or_else(String::new, |remedy| format!("; {remedy}"));
        format!("secret_file {shown} cannot be read: {error}{remedy}")
    })?;
    let secret = bytes.trim_ascii();
    if secret.len() < LEAST {
        let remedy = format!("head -c 32 /dev/urandom | base64 > {shown}");
        return Err(format!(
            "secret_file {shown} has fewer than {LEAST} bytes: {remedy}, then copy it to the other host"
        ));
    }
    if secret.len() > MOST {
        return Err(format!("secret_file {shown} has more than {MOST} bytes"));
    }
    let hash = digest(&SHA256, &[PURPOSE, secret].concat());
    hash.as_ref().first_chunk().map(|key| HelloKey(*key)).ok_or_else(|| "SHA-256 is too short".to_owned())
}

/// What the text of a key for load reports begins with.
const REPORT_KEY: &str = "levada-report-key";
/// Bytes of its secret; as hexadecimal digits twice as many.
const REPORT_SECRET: usize = 32;
/// Mode bits of everybody else.
const OF_OTHERS: u32 = 0o007;
/// Longest file that is looked at for a key, in bytes.
const MOST_OF_KEY: u64 = 4096;

/// A key for load reports.
pub struct ReportKey {
    /// The one backend that it speaks for: `SWITCH/TENANT/SERVICE/BACKEND`, or of a controller of
    /// OpenFlow switches `SERVICE/BACKEND`.
    pub path: String,
    secret: [u8; REPORT_SECRET],
}

impl ReportKey {
    /// A new one.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn new(path: &str) -> Result<ReportKey, String> {
        let mut secret = [0; REPORT_SECRET];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut secret)
            .map_err(|_| "the kernel gives no random numbers".to_owned())?;
        Ok(ReportKey { path: path.to_owned(), secret })
    }

    /// As a file has it: one line.
    pub fn text(&self) -> String {
        let mut text = format!("{REPORT_KEY} {} ", self.path);
        for byte in self.secret {
            let _ = write!(text, "{byte:02x}");
        }
        text + "\n"
    }

    /// Out of a file.
    ///
    /// # Errors
    /// In words, with the remedy: it is not there, others may read it, or it is no key.
    pub fn read(file: &Path) -> Result<ReportKey, String> {
        let shown = file.display();
        let make = format!("make one: levada key BACKEND {shown}");
        let missing = |error: std::io::Error| {
            let remedy = lend(&error, file).unwrap_or_else(|| make.clone());
            format!("key {shown} cannot be read: {error}; {remedy}")
        };
        let opened = std::fs::File::open(file).map_err(missing)?;
        if opened.metadata().map_err(missing)?.mode() & OF_OTHERS != 0 {
            return Err(format!("key {shown} can be used by everybody on this machine: chmod 600 {shown}"));
        }
        let mut bytes = Vec::new();
        opened.take(MOST_OF_KEY).read_to_end(&mut bytes).map_err(missing)?;
        let Some(text) = String::from_utf8(bytes).ok().filter(|text| may_be_replaced(text)) else {
            return Err(format!("key {shown} is no key for load reports but something else; move it away, and {make}"));
        };
        let mut words = text.split_ascii_whitespace();
        let (Some(REPORT_KEY), Some(path), Some(digits), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(format!("key {shown} is no key for load reports; {make}"));
        };
        if digits.len() < 2 * REPORT_SECRET {
            let count = digits.len();
            return Err(format!("the secret of key {shown} is too short: {count} digits instead of 64; {make}"));
        }
        let secret =
            of_hexadecimal(digits).ok_or_else(|| format!("the secret of key {shown} is not 64 digits; {make}"))?;
        Ok(ReportKey { path: path.to_owned(), secret })
    }

    /// Writes it into a file, in the place of the key there, or of what is left of one.
    ///
    /// # Errors
    /// In words: there is something else, which stays, or the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), String> {
        let shown = file.display();
        let failed = |error: std::io::Error| format!("cannot make {shown}: {error}");
        let modes = Modes { made: 0o600, kept: 0o660 };
        let there = match std::fs::metadata(file) {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return replace(file, None, &self.text(), modes).map_err(failed);
            }
            Err(error) => return Err(failed(error)),
        };
        let is_short = there.is_file() && there.len() <= MOST_OF_KEY;
        let bytes = if is_short { std::fs::read(file).map_err(failed)? } else { b"-".to_vec() };
        if let Some(other) = ReportKey::read(file).ok().filter(|there| there.path != self.path) {
            return Err(format!("{shown} is the key of \"{}\", and stays; name another file", other.path));
        }
        match String::from_utf8(bytes).ok().filter(|text| may_be_replaced(text)) {
            Some(text) => replace(file, Some(&text), &self.text(), modes).map_err(failed),
            None => Err(format!(
                "{shown} is no key for load reports but something else, and stays; move it away, or name another file"
            )),
        }
    }

    /// What a report's MAC is made and judged with.
    pub fn mac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.secret)
    }
}

/// Whether a file with such a text is a key, or was to become one.
fn may_be_replaced(text: &str) -> bool {
    text.starts_with(REPORT_KEY) || REPORT_KEY.starts_with(text.trim_ascii())
}

/// What makes a file readable that may not be read: threads that read secrets may not overrule its
/// mode, also where the user is root.
fn lend(error: &std::io::Error, file: &Path) -> Option<String> {
    let user = rustix::process::geteuid().as_raw();
    let owner = std::fs::metadata(file).ok().map(|there| there.uid());
    (error.kind() == ErrorKind::PermissionDenied).then(|| lend_to(user, owner, file))
}

/// The same for a user, where the file is `owner`'s, as far as the user may see that. Who checks a
/// configuration need not be who runs it: what is another's is not to be taken away from that one.
fn lend_to(user: u32, owner: Option<u32>, file: &Path) -> String {
    let shown = file.display();
    let name = |user| if user == 0 { "root".to_owned() } else { format!("user {user}") };
    let who = if user == 0 { "root".to_owned() } else { user.to_string() };
    match owner {
        Some(owner) if owner == user => format!("let its owner read it: chmod u+r {shown}"),
        Some(_) if user == 0 => format!("give it to the user that reads it: chown {who} {shown}"),
        Some(owner) => {
            let owner = name(owner);
            format!("it is {owner}'s: run this as {owner}, or, where {} is to read it, chown {who} {shown}", name(user))
        }
        None => {
            format!("{} may not look into its directory: let it in, or run this as the user that reads it", name(user))
        }
    }
}

fn of_hexadecimal(digits: &str) -> Option<[u8; REPORT_SECRET]> {
    let mut out = [0; REPORT_SECRET];
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    if digits.len() != 2 * REPORT_SECRET {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

/// Keys for load reports as their files had them: by backend's path and file.
#[derive(Default)]
pub struct ReportKeys {
    read: BTreeMap<(String, String), Result<ReportKey, String>>,
}

impl ReportKeys {
    /// Whether a key was read of each of these files, and of no others.
    pub fn are_of(&self, files: &[(String, String)]) -> bool {
        files.len() == self.read.len() && files.iter().all(|one| self.read.get(one).is_some_and(Result::is_ok))
    }

    /// Those of these files from now on. A key that is known stays as it was read; a file that had
    /// none is looked at again.
    pub fn read(&mut self, files: Vec<(String, String)>) {
        let mut known = std::mem::take(&mut self.read);
        let read = |one: (String, String)| {
            let key = known.remove(&one).filter(Result::is_ok).unwrap_or_else(|| ReportKey::read(Path::new(&one.1)));
            (one, key)
        };
        self.read = files.into_iter().map(read).collect();
    }

    /// Nothing was read.
    pub fn forget(&mut self) {
        self.read.clear();
    }

    /// The good ones, with their backends' paths; and what is wrong with others, which are left
    /// out.
    #[must_use]
    pub fn judge(&self) -> (Vec<(String, hmac::Key)>, Vec<String>) {
        let (mut keys, mut wrong) = (Vec::new(), Vec::new());
        let mut owners: BTreeMap<[u8; REPORT_SECRET], &str> = BTreeMap::new();
        for ((path, file), key) in &self.read {
            match key {
                Err(why) => wrong.push(format!("backend \"{path}\": {why}")),
                Ok(key) if key.path != *path => {
                    let another = format!("make another one, in another file: levada key {path} FILE");
                    wrong.push(format!("backend \"{path}\": {file} is the key of \"{}\"; {another}", key.path));
                }
                Ok(key) => match owners.get(&key.secret) {
                    Some(other) => {
                        let again = format!("make another one: levada key {path} {file}");
                        wrong.push(format!("backend \"{path}\" has the key of \"{other}\"; {again}"));
                    }
                    None => {
                        owners.insert(key.secret, path);
                        keys.push((path.clone(), key.mac()));
                    }
                },
            }
        }
        (keys, wrong)
    }
}

/// What [`ReportKeys::judge`] says of these files, read once.
pub fn report_keys(files: Vec<(String, String)>) -> (Vec<(String, hmac::Key)>, Vec<String>) {
    let mut keys = ReportKeys::default();
    keys.read(files);
    keys.judge()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_that_were_read_are_not_read_again_until_they_are_forgotten() {
        let directory = std::env::temp_dir().join(format!("levada-report-keys-again-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |path: &str| {
            let file = directory.join(path.replace('/', "-"));
            std::fs::write(&file, ReportKey::new(path).unwrap().text()).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            (path.to_owned(), file.display().to_string())
        };
        let (one, other, missing) = (write("s/t/web/1"), write("s/t/web/2"), ("s/t/web/3".into(), "/none".into()));
        let mut keys = ReportKeys::default();
        let files = vec![one.clone(), missing];
        assert!(!keys.are_of(&files));
        keys.read(vec![one.clone()]);
        assert!(keys.are_of(std::slice::from_ref(&one)));
        keys.read(files.clone());
        assert!(!keys.are_of(&files), "one has no key yet");
        std::fs::remove_file(&one.1).unwrap();
        let more = [files, vec![other.clone()]].concat();
        assert!(!keys.are_of(&more));
        keys.read(more);
        let (good, wrong) = keys.judge();
        let paths: Vec<_> = good.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!((paths, wrong.len()), (vec!["s/t/web/1", "s/t/web/2"], 1), "the one is gone and was not looked at");
        keys.forget();
        keys.read(vec![one, other]);
        assert_eq!(keys.judge().0.len(), 1);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_key_is_read_as_it_was_written_and_whatever_is_wrong_with_it_has_a_remedy() {
        let directory = std::env::temp_dir().join(format!("levada-report-keys-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let file = directory.join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            file
        };
        let named = |files: [&str; 2]| {
            let path = |at: usize| format!("s1/red/web/web{at}");
            (0..).zip(files).map(|(at, file)| (path(at), directory.join(file).display().to_string())).collect()
        };
        let [web0, web1] = ["s1/red/web/web0", "s1/red/web/web1"].map(|path| ReportKey::new(path).unwrap());
        write("web0", &web0.text(), 0o600);
        write("web1", &web1.text(), 0o640);
        let (keys, wrong) = report_keys(named(["web0", "web1"]));
        let paths: Vec<_> = keys.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!((paths, wrong), (vec!["s1/red/web/web0", "s1/red/web/web1"], vec![]));
        let tag = hmac::sign(&web0.mac(), b"x");
        assert!(hmac::verify(&keys[0].1, b"x", tag.as_ref()).is_ok());
        assert!(hmac::verify(&keys[1].1, b"x", tag.as_ref()).is_err());
        let stolen = web0.text().replace("web0", "web1");
        for (text, mode, wanted) in [
            (web1.text(), 0o604, "chmod 600"),
            (web0.text(), 0o600, "is the key of \"s1/red/web/web0\""),
            (stolen, 0o600, "has the key of \"s1/red/web/web0\""),
            ("levada-report-key s1/red/web/web1 00ff\n".to_owned(), 0o600, "too short: 4 digits"),
            (web1.text().replace(char::is_numeric, "g"), 0o600, "is no"),
            (web1.text() + "more", 0o600, "is no key"),
            (String::new(), 0o600, "is no key"),
        ] {
            write("web1", &text, mode);
            let (keys, wrong) = report_keys(named(["web0", "web1"]));
            assert_eq!((keys.len(), wrong.len()), (1, 1));
            assert!(wrong[0].contains(wanted) && wrong[0].contains("web1"), "{wrong:?}");
        }
        let (_, wrong) = report_keys(named(["web0", "none"]));
        assert!(wrong[0].contains("cannot be read") && wrong[0].contains("levada key"), "{wrong:?}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn who_may_not_read_a_secret_is_told_whose_it_must_be() {
        let file = Path::new("/k");
        assert_eq!(lend_to(0, Some(1000), file), "give it to the user that reads it: chown root /k");
        // As one user, who checks what another runs or reads it.
        for (owner, whose) in [(0, "root"), (7, "user 7")] {
            let said = lend_to(1000, Some(owner), file);
            let (first, second) = said.split_once(", or, ").unwrap();
            assert_eq!(first, format!("it is {whose}'s: run this as {whose}"));
            assert_eq!(second, "where user 1000 is to read it, chown 1000 /k");
        }
        for user in [0, 1000] {
            assert!(lend_to(user, Some(user), file).ends_with(": chmod u+r /k"));
            assert!(!lend_to(user, None, file).contains("chown"));
        }
        // Of this user.
        let (denied, user) = (ErrorKind::PermissionDenied.into(), rustix::process::geteuid().as_raw());
        assert_eq!(lend(&denied, file), Some(lend_to(user, None, file)));
        let (root, owner) = (Path::new("/"), std::fs::metadata("/").unwrap().uid());
        assert_eq!(lend(&denied, root), Some(lend_to(user, Some(owner), root)));
        assert_eq!(lend(&ErrorKind::NotFound.into(), file), None);
    }

    #[test]
    fn a_key_is_made_of_the_secret_and_not_of_the_blanks_around_it() {
        let directory = std::env::temp_dir().join(format!("levada-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("secret");
        let key = |text: &str| {
            std::fs::write(&file, text).unwrap();
            hello_key(&file)
        };
        let one = key("0123456789abcdef").unwrap();
        assert_eq!(key(" 0123456789abcdef\n"), Ok(one));
        assert_ne!(key("0123456789abcdeg").unwrap(), one);
        assert!(key("0123456789abcde\n").unwrap_err().contains("fewer than 16 bytes"));
        assert!(key(&"x".repeat(5000)).unwrap_err().contains("more than 4096"));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(hello_key(&file).unwrap_err().contains("cannot be read"));
    }
}
