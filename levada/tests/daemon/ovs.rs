//! An Open vSwitch of a test's own, in its userspace datapath. Needs Debian's
//! `openvswitch-switch`; a test says so and is skipped where it is not.

use crate::testbed::{Bed, skipped, soon};
use std::process::{Child, Command};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const VSWITCHD: &str = "ovs-vswitchd";

/// An Open vSwitch in the namespace `sw`, with a bridge `br0`.
pub struct Ovs<'a> {
    bed: &'a Bed,
    processes: Vec<Child>,
}

impl Ovs<'_> {
    /// `None` where there is none: says that `test` is skipped. `fail_mode` is that of the bridge.
    pub fn start<'a>(bed: &'a Bed, test: &str, fail_mode: &str) -> Option<Ovs<'a>> {
        let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
        if !["ovsdb-tool", "ovsdb-server", VSWITCHD, "ovs-vsctl"].into_iter().all(has) {
            skipped(test, "there is no Open vSwitch: install openvswitch-switch (tools/setup peers)");
            return None;
        }
        let mut ovs = Ovs { bed, processes: Vec::new() };
        let at = |file: &str| bed.directory.join(file).display().to_string();
        let made = Command::new("ovsdb-tool").args(["create", &at("conf.db"), SCHEMA]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        ovs.spawn("ovsdb-server", &[&at("conf.db"), &format!("--remote=punix:{}", at("db.sock"))]);
        soon("ovsdb-server is there", || bed.directory.join("db.sock").exists());
        ovs.set("--no-wait init");
        ovs.switch();
        ovs.set(&format!("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode={fail_mode}"));
        Some(ovs)
    }

    /// Starts the switch itself.
    pub fn switch(&mut self) {
        let database = format!("unix:{}", self.bed.directory.join("db.sock").display());
        self.spawn(VSWITCHD, &[&database]);
    }

    /// Kills the switch itself, which was started last.
    pub fn kill(&mut self) {
        if let Some(mut switch) = self.processes.pop() {
            switch.kill().unwrap();
            switch.wait().unwrap();
        }
    }

    /// A guest in a namespace, with a tap of its name: the last byte of its addresses is `number`.
    pub fn guest(&self, name: &str, number: u8) {
        self.set(&format!("add-port br0 {name} -- set interface {name} type=tap"));
        self.bed.ip("sw", &format!("link set {name} netns {}", self.bed.name(name))).unwrap();
        self.bed.ip(name, &format!("link set {name} address 02:00:00:00:00:{number:02x} up")).unwrap();
        self.bed.ip(name, &format!("addr add 10.0.0.{number}/24 dev {name}")).unwrap();
        self.bed.ip(name, &format!("addr add fd00::{number}/64 dev {name} nodad")).unwrap();
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let directory = self.bed.directory.display();
        let mut command = Command::new(program);
        command.args(arguments).env("OVS_RUNDIR", self.bed.directory.as_os_str());
        command.args([format!("--unixctl={directory}/{program}.ctl"), format!("--pidfile={directory}/{program}.pid")]);
        command.args(["-vconsole:off".to_owned(), format!("--log-file={directory}/{program}.log")]);
        self.processes.push(self.bed.space("sw").run(|| command.spawn().unwrap()).unwrap());
    }

    /// `ovs-vsctl` with these words.
    pub fn set(&self, words: &str) {
        let database = format!("--db=unix:{}/db.sock", self.bed.directory.display());
        run(Command::new("ovs-vsctl").args([&database, "--timeout=20"]).args(words.split(' ')));
    }

    /// What the switch answers to `ovs-appctl` with these words.
    pub fn ask(&self, words: &str) -> String {
        let target = self.bed.directory.join(format!("{VSWITCHD}.ctl")).display().to_string();
        run(Command::new("ovs-appctl").args(["--timeout=20", "-t", &target]).args(words.split(' ')))
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Drop for Ovs<'_> {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
