//! The command line: what there is, as one description, from which help comes (and completions and
//! man pages can be made).

use crate::client::Instance;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use control::action::{Action, Kind};
use control::write::Keys;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A software switch that gives each tenant what it was promised, in both directions.
#[derive(Parser, Debug)]
#[command(
    name = "levada",
    version,
    max_term_width = 110,
    disable_help_subcommand = true,
    after_help = "Environment:\n  LEVADA_RUN_DIR  where run directories are, instead of /run/levada\n\n\
                  Exit status: 0 done, 1 failed or refused, 2 wrong command line."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the daemon in the foreground until Ctrl-C or SIGTERM
    ///
    /// When its ports are open, the daemon prints "levada: NAME ready" on standard error; of those
    /// that are not there yet, a warning says so. On SIGHUP it reads the file again and applies
    /// the differences.
    Run {
        /// The configuration
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Take over from the process that runs the instance, without stopping its traffic
        ///
        /// Devices and learned state pass to the new process, and the old process ends. If the
        /// takeover fails, the old process continues.
        #[arg(long)]
        takeover: bool,
        /// How the log is written to standard error
        #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
        log: crate::system::log::Format,
    },
    /// Control Open vSwitch: balance services by OpenFlow 1.3, in the foreground until Ctrl-C or
    /// SIGTERM
    ///
    /// Switches connect to the controller. When it listens, it prints "levada: NAME ready" on
    /// standard error. On SIGHUP it reads the file again. At its end all flows stay in the
    /// switches, so that open connections go on; one that starts again continues with them.
    Openflow {
        /// The configuration, with [openflow]
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// How the log is written to standard error
        #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
        log: crate::system::log::Format,
    },
    /// Check a configuration: print its problems, or the guarantees that it gives
    Check {
        /// The configuration
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a running daemon has promised, carried and dropped
    Show(Show),
    /// Add a switch, uplink, bond-member, tenant, endpoint, service, backend, link, cluster or
    /// member to a running daemon
    ///
    /// Keys are those of the configuration file: levada add endpoint s1/red/red2 port=tap://red2
    /// guarantee="10 Mbit/s"
    Add(Edit),
    /// Change keys of something in a running daemon
    ///
    /// KEY= gives a key its default again. Only the keys that are named change; traffic goes on. A
    /// list or table replaces the whole key: name both directions of a limit.
    Set(Edit),
    /// Tell a running daemon the load average of a backend
    ///
    /// It is what the policies `loadavg` and `loadavg-corrected` go by: levada load s1/red/web/red2
    /// 0.53
    Load(crate::services::Load),
    /// Make the key under which the server of a backend reports its load
    ///
    /// The file goes to the server, and to the host of the daemon, whose configuration names it as
    /// the backend's `key`. A key speaks for one backend only.
    Key(crate::reports::Key),
    /// On a server: report its load average to a daemon, until Ctrl-C or SIGTERM
    ///
    /// A report is a UDP datagram of 64 bytes under the backend's key (HMAC-SHA-256). It is what
    /// the policies `loadavg` and `loadavg-corrected` go by. The clocks of both hosts must agree
    /// to within 30 s.
    Report(crate::reports::Reporter),
    /// Delete something from a running daemon, and all that is in it
    Del {
        #[command(flatten)]
        what: Thing,
        #[command(flatten)]
        how: How,
    },
    /// Change the configuration of a running daemon to that of a file
    ///
    /// Only the differences are applied; unchanged parts lose no frame. If one change is refused,
    /// none is made.
    Apply {
        /// The configuration
        file: PathBuf,
        #[command(flatten)]
        how: How,
    },
    /// Write the configuration that a daemon runs into a file, so that live changes stay
    ///
    /// In a file that there is, only what differs is changed: comments, order and spelling stay. A
    /// file that is not there is written whole.
    Save {
        /// The configuration file
        file: PathBuf,
        #[command(flatten)]
        how: How,
    },
    /// Watch the guarantees: the rate that each tenant and endpoint is promised, and the rate it
    /// gets
    Top(crate::command::top::Arguments),
    /// Follow frames through a running daemon, or print what would happen to a described frame
    Trace(crate::trace::Arguments),
    /// Make a cluster of hosts, or join one: the keys and certificates of the hosts
    #[command(subcommand)]
    Cluster(crate::command::cluster::Arguments),
    /// Print the JSON schema of the configuration
    Schema {
        /// Of the configuration of levada openflow
        #[arg(long)]
        openflow: bool,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages of all commands into a directory
    Man {
        /// The directory
        directory: PathBuf,
    },
    /// Remove the files and devices of a daemon that was killed, and persistent devices
    ///
    /// For an instance that is not to run again. One that is only started again: what a killed one
    /// left is used or removed then.
    Clean {
        /// The instance ([daemon] name), which must not run. Without it: all that were killed, but
        /// their persistent devices stay
        #[arg(short, long, value_parser = crate::client::instance_name)]
        name: Option<String>,
    },
}

/// `levada show`.
#[derive(Args, Debug)]
pub struct Show {
    /// What to show
    #[arg(value_enum, default_value = "all", hide_default_value = true)]
    pub what: What,
    /// Of connections: whose, SWITCH/TENANT/SERVICE
    #[arg(requires = "what", value_parser = service_path)]
    pub service: Option<String>,
    /// Of connections: of this client's address only
    #[arg(requires = "service")]
    pub client: Option<String>,
    /// Of vcc: connections with this address, or address and port, only; with two ends, those
    /// between them
    #[arg(long, value_name = "END", num_args = 1..=2, requires = "what")]
    pub flow: Vec<String>,
    #[command(flatten)]
    pub instance: Instance,
    /// Print JSON (version 1: keys may be added, none changes its meaning)
    #[arg(long)]
    pub json: bool,
    /// Print again every SECONDS seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// What `levada show` shows.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Everything that is counted
    All,
    /// The switches and their uplinks
    Switches,
    /// The tenants: guarantees and traffic
    Tenants,
    /// The endpoints: guarantees and traffic
    Endpoints,
    /// The ports: locators, states, processor time
    Ports,
    /// The uplinks with several ports: what each of these carries, and why it does not
    Bonds,
    /// The links between switches of the daemon
    Links,
    /// The queues with a discipline of their own: marks, drops, what found them full
    Queues,
    /// The declared and learned addresses, by tenant: the endpoint and the last use of each
    Tables,
    /// The other hosts of the cluster: connections, datagrams, certificates, errors
    Cluster,
    /// The congestion agents: limits sent to other hosts, limits received, senders that exceed
    /// theirs
    Agents,
    /// The tunnels to other hosts: ends, networks, next hops
    Tunnels,
    /// The services: who has how much in flight, what was refused
    Services,
    /// The connections of one service: show connections SWITCH/TENANT/SERVICE [CLIENT]
    Connections,
    /// Virtual congestion control: connections, marks, windows
    Vcc,
    /// The switches of a controller (levada openflow): roles, flow set-ups, errors
    Openflow,
    /// The dropped frames, by reason
    Drops,
    /// The configuration that runs now
    Config,
}

/// A thing in the configuration.
#[derive(Args, Debug)]
pub struct Thing {
    /// What kind of thing: switch, uplink, bond-member, tenant, endpoint, service, backend, link,
    /// cluster or member
    #[arg(value_parser = kind)]
    pub kind: Kind,
    /// Which: SWITCH, SWITCH/MEMBER, SWITCH/TENANT, SWITCH/TENANT/ENDPOINT, SWITCH/TENANT/SERVICE,
    /// SWITCH/TENANT/SERVICE/BACKEND, LINK or HOST; nothing for cluster
    #[arg(default_value = "", hide_default_value = true)]
    pub path: String,
}

/// How changes are made.
#[derive(Args, Debug)]
pub struct How {
    #[command(flatten)]
    pub instance: Instance,
    /// Change nothing: print what would be done, or why it would be refused
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON (version 1)
    #[arg(long)]
    pub json: bool,
    /// Refuse the change if the configuration is at another revision
    #[arg(long, value_name = "NUMBER")]
    pub revision: Option<u64>,
}

/// `levada add` and `levada set`.
#[derive(Args, Debug)]
pub struct Edit {
    /// What kind of thing: switch, uplink, bond-member, tenant, endpoint, service, backend, link,
    /// cluster or member; levada set takes daemon and bond, too
    #[arg(value_parser = kind)]
    pub kind: Kind,
    /// Which: SWITCH, SWITCH/MEMBER, SWITCH/TENANT, SWITCH/TENANT/ENDPOINT, SWITCH/TENANT/SERVICE,
    /// SWITCH/TENANT/SERVICE/BACKEND, LINK or HOST (not for daemon and cluster); then KEY=VALUE...
    ///
    /// Lists and tables are written as JSON: limit='{"egress": "5 Mbit/s", "ingress": "20 Mbit/s"}'
    #[arg(value_name = "PATH KEY=VALUE")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub how: How,
}

impl Edit {
    /// The path and the keys.
    ///
    /// # Errors
    /// A word that is no `KEY=VALUE`.
    pub fn path_and_keys(&self) -> Result<(String, Keys), String> {
        let mut words = self.words.iter();
        let path = if self.kind.path_form().is_empty() {
            String::new()
        } else {
            words
                .next()
                .filter(|word| !word.contains('='))
                .cloned()
                .ok_or_else(|| format!("the path is missing; write {} before the keys", self.kind.path_form()))?
        };
        let mut keys = Keys::new();
        for word in words {
            let Some((key, text)) = word.split_once('=') else {
                return Err(format!("\"{word}\" is not KEY=VALUE; write such as weight=2"));
            };
            if keys.insert(key.to_owned(), value(self.kind, key, text)).is_some() {
                return Err(format!("the key \"{key}\" is given twice; remove one"));
            }
        }
        Ok((path, keys))
    }

    /// The action of `levada add`.
    ///
    /// # Errors
    /// See [`Edit::path_and_keys`].
    pub fn add(&self) -> Result<Action, String> {
        self.path_and_keys().map(|(path, keys)| Action::Add { kind: self.kind, path, keys })
    }

    /// The action of `levada set`.
    ///
    /// # Errors
    /// See [`Edit::path_and_keys`].
    pub fn set(&self) -> Result<Action, String> {
        self.path_and_keys().map(|(path, keys)| Action::Set { kind: self.kind, path, keys })
    }
}

/// A value as typed: nothing for the default, JSON for keys that are not text, and else the text
/// itself.
fn value(kind: Kind, key: &str, text: &str) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    let is_text = control::schema::takes_only_text(kind, key);
    match serde_json::from_str(text) {
        Ok(value @ (Value::Array(_) | Value::Object(_))) => value,
        Ok(value) if !is_text => value,
        _ => Value::from(text),
    }
}

/// A service's path has three names.
fn service_path(path: &str) -> Result<String, String> {
    let is_path = path.split('/').count() == 3 && path.split('/').all(|name| control::names::name(name).is_ok());
    if is_path { Ok(path.to_owned()) } else { Err("write SWITCH/TENANT/SERVICE".to_owned()) }
}

fn kind(word: &str) -> Result<Kind, String> {
    Kind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(|| {
        let words: Vec<&str> = Kind::ALL.iter().map(|kind| kind.word()).collect();
        format!("it is one of {}", words.join(", "))
    })
}

/// Completions for a shell.
pub fn completions(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "levada", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes a man page for each command into `directory`, which is made if need be.
///
/// # Errors
/// It cannot be written.
pub fn man(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["levada"], words].concat())
    }

    #[test]
    fn every_command_has_a_man_page_and_every_shell_its_completions() {
        let directory = std::env::temp_dir().join(format!("levada-man-{}", std::process::id()));
        man(&directory).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = std::fs::read_to_string(directory.join(format!("levada-{}.1", command.get_name()))).unwrap();
            let about = command.get_about().unwrap().to_string();
            assert!(page.replace('\\', "").contains(&about), "{about}");
        }
        std::fs::remove_dir_all(directory).unwrap();
        for shell in clap_complete::Shell::value_variants() {
            assert!(completions(*shell).contains("takeover"), "{shell}");
        }
    }

    #[test]
    fn the_help_of_a_change_names_every_kind_and_every_form_of_a_path() {
        for name in ["add", "set", "del"] {
            let mut command = Cli::command().find_subcommand(name).unwrap().clone();
            let help = command.render_long_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            for kind in Kind::ALL {
                let is_named = help.contains(kind.word()) || name != "set" && matches!(kind, Kind::Daemon | Kind::Bond);
                assert!(is_named && help.contains(kind.path_form()), "{name}: {}: {help}", kind.word());
            }
        }
    }

    #[test]
    fn the_description_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_take_their_options_and_no_others() {
        for good in [
            &["run", "-c", "f"][..],
            &["run", "-c", "f", "--log", "json"],
            &["show", "--json", "-nx"],
            &["show", "drops", "--watch", "5"],
            &["show", "--watch"],
            &["openflow", "-c", "f", "--log", "json"],
            &["show", "openflow"],
            &["schema", "--openflow"],
            &["show", "connections", "s1/red/web", "10.0.0.1"],
            &["load", "s1/red/web/red2", "0.53"],
            &["key", "s1/red/web/red2", "/etc/levada/red2.key"],
            &["report", "--key", "k", "--to", "192.0.2.1", "--every", "5s"],
            &["report", "--key", "k", "--to", "192.0.2.1:7371", "--once", "--load-from", "f"],
            &["apply", "f", "--dry-run"],
            &["set", "daemon", "spin=true"],
            &["del", "endpoint", "s/t/e"],
            &["clean"],
            &["trace"],
            &["top", "--once"],
            &["show", "cluster"],
            &["cluster", "init", "--host", "h1"],
            &["cluster", "join", "-d", "/tmp/c", "--via", "ssh h1 levada cluster sign"],
            &["cluster", "join", "--certificate", "-"],
            &["cluster", "rotate", "--finish"],
            &["trace", "endpoint", "red1", "and", "tcp", "--count", "5"],
            &["trace", "--from", "s1/red/a", "--to", "02:00:00:00:00:01", "tcp", "10.0.0.1:1", "10.0.0.2:2"],
        ] {
            assert!(parsed(good).is_ok(), "{good:?}: {}", parsed(good).unwrap_err());
        }
        for wrong in [
            &["run"][..],
            &["run", "f"],
            &["run", "-c", "f", "--json"],
            &["run", "-c", "f", "--log", "xml"],
            &["check"],
            &["openflow", "f"],
            &["check", "f", "g"],
            &["show", "f"],
            &["show", "connections", "s1/red"],
            &["load", "s1/red/web/red2", "high"],
            &["key", "s1/red/web"],
            &["report", "--key", "k", "--to", "web1"],
            &["report", "--key", "k", "--to", "192.0.2.1", "--once", "--every", "1 s"],
            &["show", "--watch", "0"],
            &["show", "--name", "../x"],
            &["clean", "--json"],
            &["trace", "--to", "02:00:00:00:00:01"],
            &["trace", "--count", "0"],
            &["trace", "--from", "s1/red/a", "--hex", "00", "tcp"],
            &["add"],
            &["add", "tennant", "s1/red"],
            &["cluster"],
            &["cluster", "init", "--host", "H1"],
            &["cluster", "join", "--host", "h1", "--certificate", "f"],
            &["cluster", "sign", "--via", "x"],
            &["shwo"],
            &[],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn keys_are_text_unless_they_take_something_else() {
        let edit = |words: &[&str]| match parsed(words).unwrap().command {
            Command::Add(edit) => edit.add(),
            Command::Set(edit) => edit.set(),
            other => panic!("{other:?}"),
        };
        let made =
            edit(&["add", "endpoint", "s1/red/a", "port=tap://a", "netns=7", "mtu=9000", "trunk=true", "mac=[\"x\"]"]);
        let wanted = serde_json::json!({"action": "add", "kind": "endpoint", "path": "s1/red/a",
            "keys": {"port": "tap://a", "netns": "7", "mtu": 9000, "trunk": true, "mac": ["x"]}});
        assert_eq!(serde_json::to_value(made.unwrap()).unwrap(), wanted);
        let made = edit(&["set", "daemon", "spin=", "memory=64 MiB"]);
        let wanted = serde_json::json!({"action": "set", "kind": "daemon", "keys": {"spin": null, "memory": "64 MiB"}});
        assert_eq!(serde_json::to_value(made.unwrap()).unwrap(), wanted);
        for wrong in [
            &["set", "tenant"][..],
            &["set", "tenant", "limit=1"],
            &["set", "tenant", "s/t", "limit"],
            &["set", "daemon", "spin=true", "spin=true"],
        ] {
            assert!(edit(wrong).is_err(), "{wrong:?}");
        }
    }
}
