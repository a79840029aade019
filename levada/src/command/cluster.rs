//! `levada cluster`: how hosts come to trust each other. One host makes the cluster's authority;
//! each host makes its own key, which never leaves it, and has the authority vouch for it by a
//! certificate.
//!
//! How the request gets to the authority and the certificate back is the operator's affair, who has
//! a trusted way between his hosts already: `--via` takes any command that runs `levada cluster
//! sign` there, such as `ssh host1 levada cluster sign`; or both are carried as files. So no daemon
//! has to listen for strangers, and there is no token that could leak.

use crate::check;
use crate::cluster::directory;
use crate::cluster::pki::authority::{Answer, Authority, request, settle};
use crate::cluster::pki::credentials::{self, AUTHORITY, Credentials, HOST, Parsed, REQUEST, TRUST, option};
use crate::error::{Failure, print};
use clap::{Args, Subcommand};
use control::config::DEFAULT_DIRECTORY;
use rustls::RootCertStore;
use std::fs;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Longest request or answer, in bytes.
const MAX_TEXT: u64 = 64 << 10;

/// `levada cluster`.
#[derive(Subcommand, Debug)]
pub enum Arguments {
    /// Make a cluster: its authority, and this host's certificate
    Init {
        #[command(flatten)]
        place: KeyDirectory,
        /// Name of this host [default: its certificate's, or the system's]
        #[arg(long, value_parser = host_name)]
        host: Option<String>,
    },
    /// Join a cluster, or renew this host's certificate: a new key, and a certificate from the
    /// authority
    ///
    /// A running daemon loads the new certificate within a minute. The host that has the authority
    /// signs its own request. Another host runs `levada cluster sign` there with --via. Without
    /// --via the request is printed: pass it to `levada cluster sign`, and the answer to
    /// --certificate.
    Join {
        #[command(flatten)]
        place: KeyDirectory,
        /// Name of this host [default: its certificate's, or the system's]
        #[arg(long, value_parser = host_name)]
        host: Option<String>,
        /// Shell command that runs `levada cluster sign` on the authority's host, such as "ssh
        /// host1 levada cluster sign"
        #[arg(long, value_name = "COMMAND")]
        via: Option<String>,
        /// File with the answer to an earlier printed request; - for standard input
        #[arg(long, value_name = "FILE", conflicts_with_all = ["via", "host"])]
        certificate: Option<PathBuf>,
    },
    /// Sign a request: read it from standard input, write the certificate to standard output
    Sign {
        #[command(flatten)]
        place: KeyDirectory,
        /// Refuse requests of all hosts but this one
        #[arg(long, value_parser = host_name)]
        host: Option<String>,
    },
    /// Replace the authority: make a new one, then withdraw the old one
    ///
    /// Hosts accept both until all hosts have joined again, in any order. Then run it with
    /// --finish, and let all hosts join once more.
    Rotate {
        #[command(flatten)]
        place: KeyDirectory,
        /// Withdraw the old authority
        #[arg(long)]
        finish: bool,
    },
    /// Delete the etcd entries of a host that is lost for good; refused while the host runs
    Forget {
        /// Name of the lost host
        #[arg(value_parser = host_name)]
        host: String,
        /// Configuration of this host, with [cluster.etcd]
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Show the host's certificate and the authorities, and when each expires
    Status {
        #[command(flatten)]
        place: KeyDirectory,
    },
}

/// Where the files are.
#[derive(Args, Debug)]
pub struct KeyDirectory {
    /// Directory of certificates and keys, as in [cluster]
    #[arg(short, long, value_name = "DIR", default_value = DEFAULT_DIRECTORY)]
    directory: PathBuf,
}

fn host_name(text: &str) -> Result<String, String> {
    control::names::host(text).map_err(|wrong| format!("{}; {}", wrong.message, wrong.remedy))
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let done = match arguments {
        Arguments::Init { place, host } => init(&place.directory, host),
        Arguments::Join { place, host, via, certificate } => match certificate {
            Some(file) => take(&place.directory, &file),
            None => join(&place.directory, host, via.as_deref()),
        },
        Arguments::Sign { place, host } => sign(&place.directory, host.as_deref()),
        Arguments::Rotate { place, finish } => rotate(&place.directory, finish),
        Arguments::Forget { host, config } => return forget(&host, &config).and_then(|text| print(&text)),
        Arguments::Status { place } => status(&place.directory),
    };
    done.map_err(Failure::Failed).and_then(|text| print(&text))
}

fn init(directory: &Path, host: Option<String>) -> Result<String, String> {
    make(directory)?;
    for file in [AUTHORITY, TRUST] {
        let file = directory.join(file);
        if file.exists() {
            return Err(format!(
                "{} exists: this host is in a cluster already; to begin another, remove the file or choose another --directory",
                file.display()
            ));
        }
    }
    let host = name(directory, host)?;
    let authority = Authority::new()?;
    authority.store(directory)?;
    let credentials = join_here(directory, &host, &authority)?;
    Ok(format!(
        "{}\n{} holds the cluster's authority: keep a copy of it where nobody else can read it.\n\
         Other hosts join with:  levada cluster join --host NAME --via \"ssh {host} levada cluster sign{}\"\n",
        joined(&credentials, directory),
        directory.join(AUTHORITY).display(),
        option(directory)
    ))
}

fn join(directory: &Path, host: Option<String>, via: Option<&str>) -> Result<String, String> {
    make(directory)?;
    let host = name(directory, host)?;
    if directory.join(AUTHORITY).exists() {
        if via.is_some() {
            return Err(format!("this host has the authority ({}); remove --via", directory.join(AUTHORITY).display()));
        }
        return join_here(directory, &host, &Authority::load(directory)?).map(|c| joined(&c, directory) + "\n");
    }
    let (key, request) = request(&host)?;
    let Some(via) = via else {
        credentials::write_private(&directory.join(REQUEST), &key.serialize_pem())?;
        eprintln!(
            "Pass this request to levada cluster sign on the authority's host. Save its output to FILE, and run here:\n  levada cluster join{} --certificate FILE",
            option(directory)
        );
        return Ok(request);
    };
    let text = ask(via, &request)?;
    let answer = read_answer(&text, &format!("the answer of {via:?}"))?;
    accept(directory, &key.serialize_pem(), &answer, Some(&host))
}

/// Takes the answer to an earlier request.
fn take(directory: &Path, file: &Path) -> Result<String, String> {
    let waiting = directory.join(REQUEST);
    if !waiting.exists() {
        return Err(format!(
            "{} does not exist: no request waits for an answer; run levada cluster join to make one",
            waiting.display()
        ));
    }
    let key = String::from_utf8(credentials::read(&waiting)?)
        .map_err(|_| format!("{} is damaged; run levada cluster join again", waiting.display()))?;
    let text = if file == Path::new("-") {
        read_input()?
    } else {
        let text = fs::read_to_string(file);
        text.map_err(|error| format!("cannot read {}: {error}", file.display()))?
    };
    accept(directory, &key, &read_answer(&text, &file.display().to_string())?, None)
}

fn sign(directory: &Path, only: Option<&str>) -> Result<String, String> {
    let authority = Authority::load(directory)?;
    if io::stdin().is_terminal() {
        eprintln!("Waiting for a request on standard input (levada cluster join prints one), ended by Ctrl-D.");
    }
    let (host, answer) = authority.sign(&read_input()?)?;
    if only.is_some_and(|only| only != host) {
        return Err(format!(
            "the request is from host \"{host}\", but --host allows only \"{}\"; send that host's request, or change --host",
            only.unwrap_or_default()
        ));
    }
    eprintln!("levada: signed for host \"{host}\"");
    Ok(credentials::pem_of(answer.chain.iter().chain(&answer.trust)))
}

fn rotate(directory: &Path, finish: bool) -> Result<String, String> {
    let mut authority = Authority::load(directory)?;
    let host = name(directory, None)?;
    let next = match (finish, authority.is_changing()) {
        (false, true) => {
            return Err("the authority is being replaced already; when all hosts have joined again, run levada cluster rotate --finish"
                .to_owned());
        }
        (true, false) => {
            return Err(
                "the authority is not being replaced; run levada cluster rotate without --finish first".to_owned()
            );
        }
        (false, false) => {
            authority = authority.successor()?;
            "There is a new authority, and the old one is still accepted. Run levada cluster join on every other host, in any order.\n\
             When all have joined, run levada cluster rotate --finish here.\n"
        }
        (true, true) => {
            authority.finish();
            "The old authority is withdrawn here. Run levada cluster join on every other host once more, to withdraw it there too.\n"
        }
    };
    authority.store(directory)?;
    let credentials = join_here(directory, &host, &authority)?;
    Ok(format!("{}\n{next}", joined(&credentials, directory)))
}

fn forget(host: &str, file: &Path) -> Result<String, Failure> {
    let (checked, warnings) = check::load(file)?;
    check::complain(&warnings);
    let etcd = checked.config.cluster.and_then(|cluster| cluster.etcd).ok_or_else(|| {
        Failure::Failed(format!(
            "{} has no [cluster.etcd]; delete the host from the members instead (levada del member {host}, on each host)",
            file.display()
        ))
    })?;
    let gone = directory::forget(&etcd, host).map_err(Failure::Failed)?;
    if gone.is_empty() {
        return Err(Failure::Failed(format!(
            "the etcd has no entry of host \"{host}\"; check the name, and `prefix` in [cluster.etcd] of {}",
            file.display()
        )));
    }
    Ok(format!("The entries of host \"{host}\" are deleted:\n  {}\n", gone.join("\n  ")))
}

fn status(directory: &Path) -> Result<String, String> {
    let host = certified(directory).ok_or_else(|| {
        format!("{} does not exist or is damaged; run levada cluster join", directory.join(HOST).display())
    })?;
    let credentials = Credentials::load(directory, &host)?;
    let mut text = format!(
        "host {host}: certificate until {}\nauthorities: {}, until {}\n",
        credentials.not_after.date(),
        credentials.authorities,
        credentials.authority_not_after.date()
    );
    let issuer = credentials.own.cert.first().and_then(|own| Parsed::new(own).ok()).map(|own| own.issuer);
    let trust = directory.join(TRUST);
    for authority in credentials::certificates(&credentials::read(&trust)?, &trust)? {
        let authority = Parsed::new(&authority)?;
        let signed =
            if issuer.as_deref() == Some(&authority.subject) { ", signed this host's certificate" } else { "" };
        text += &format!("  {}, until {}{signed}\n", authority.subject, authority.not_after.date());
    }
    if directory.join(AUTHORITY).exists() {
        let changing = if Authority::load(directory)?.is_changing() { ", which replaces an older one" } else { "" };
        text += &format!("this host holds the authority{changing}\n");
    }
    if directory.join(REQUEST).exists() {
        text += "a request waits for its answer (levada cluster join --certificate FILE)\n";
    }
    Ok(text)
}

/// Makes the directory, for its owner only.
fn make(directory: &Path) -> Result<(), String> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(directory);
    made.map_err(|error| {
        format!(
            "cannot make the directory {}: {error}; run as root, or choose another --directory",
            directory.display()
        )
    })
}

/// The name of this host: as told, or as its certificate has it, or the system's.
fn name(directory: &Path, told: Option<String>) -> Result<String, String> {
    if let Some(name) = told.or_else(|| certified(directory)) {
        return Ok(name);
    }
    let system = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    host_name(&system)
        .map_err(|why| format!("the host name of the system cannot be used: {why}; set another with --host"))
}

/// Whose certificate is there.
fn certified(directory: &Path) -> Option<String> {
    let file = directory.join(HOST);
    let all = credentials::certificates(&credentials::read(&file).ok()?, &file).ok()?;
    Parsed::new(all.first()?).ok()?.host
}

fn join_here(directory: &Path, host: &str, authority: &Authority) -> Result<Credentials, String> {
    let (key, request) = request(host)?;
    let (_, answer) = authority.sign(&request)?;
    settle(directory, &key.serialize_pem(), &answer)
}

/// Puts an answer in its place, if it is from this host's own cluster.
fn accept(directory: &Path, key: &str, answer: &Answer, host: Option<&str>) -> Result<String, String> {
    let credentials = Credentials::of(key, answer.chain.clone(), answer.trust.clone())?;
    if host.is_some_and(|host| host != credentials.host) {
        return Err(format!(
            "the certificate is for host \"{}\", not for \"{}\"; sign the request of this host",
            credentials.host,
            host.unwrap_or_default()
        ));
    }
    let trust = directory.join(TRUST);
    if trust.exists() {
        let mut known = RootCertStore::empty();
        for root in credentials::certificates(&credentials::read(&trust)?, &trust)? {
            known.add(root).map_err(|error| format!("{}: {error}", trust.display()))?;
        }
        credentials::vouched(&Arc::new(known), &answer.chain).map_err(|why| {
            format!(
                "the certificate is not from this host's cluster ({why}); to change to another cluster, or if the authority was \
                 replaced without this host, remove {} and join again",
                trust.display()
            )
        })?;
    }
    let credentials = settle(directory, key, answer)?;
    // What was asked for is there, be it by another request.
    let _ = fs::remove_file(directory.join(REQUEST));
    Ok(joined(&credentials, directory) + "\n")
}

fn joined(credentials: &Credentials, directory: &Path) -> String {
    format!(
        "Host \"{}\" has a certificate until {} in {}.",
        credentials.host,
        credentials.not_after.date(),
        directory.join(HOST).display()
    )
}

/// The certificates of an answer: the host's first, then those that lead to an authority, and the
/// authorities.
fn read_answer(text: &str, what: &str) -> Result<Answer, String> {
    let all = credentials::certificates(text.as_bytes(), Path::new(what))?;
    let (mut chain, mut trust) = (Vec::new(), Vec::new());
    for certificate in all {
        let list = if Parsed::new(&certificate)?.is_root { &mut trust } else { &mut chain };
        list.push(certificate);
    }
    if chain.is_empty() || trust.is_empty() {
        return Err(format!(
            "{what} has no certificate from levada cluster sign; pass the whole output of that command"
        ));
    }
    Ok(Answer { chain, trust })
}

/// Runs a shell command with `input`, and returns what it prints.
fn ask(via: &str, input: &str) -> Result<String, String> {
    let failed = |error: io::Error| format!("--via: cannot run {via:?}: {error}");
    let mut child = Command::new("/bin/sh")
        .args(["-c", via])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who does not read it will not answer either.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(format!("--via: {via:?} failed ({}); nothing was changed", output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| format!("--via: {via:?} did not print text; it must run levada cluster sign"))
}

fn read_input() -> Result<String, String> {
    let mut text = String::new();
    let read = io::stdin().take(MAX_TEXT).read_to_string(&mut text);
    read.map(|_| text).map_err(|error| format!("cannot read standard input: {error}"))
}
