//! What goes over the control socket as JSON. Version 1: keys may be added, none changes its
//! meaning. Here lie the types; what fills them lies where it is known, and what prints them in
//! [`crate::command::show`] and [`crate::report`].

pub mod agents;
pub mod bonds;
pub mod cluster;
pub mod device;
pub mod lacp;
pub mod openflow;
pub mod report;
pub mod services;
pub mod tables;
pub mod trace;
pub mod tunnels;
pub mod vcc;

use control::action::Action;
use control::problem::Problem;
use control::write::Keys;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of all answers.
pub const VERSION: u32 = 1;

/// `POST /v1/actions`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// What to do, in order: all of it, or nothing.
    pub actions: Vec<Action>,
    /// The revision that the actions are meant for: at another one they are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Only check.
    #[serde(default)]
    pub dry_run: bool,
    /// Network namespaces that the actions name by these paths: the client has sent a descriptor of
    /// each beside the request (SCM_RIGHTS, unix(7)), in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

/// The answer to a change that was made, or would be.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
pub struct ChangeReply {
    /// 1.
    pub version: u32,
    /// The revision that runs now.
    pub revision: u64,
    /// Nothing was changed: it was only asked.
    pub dry_run: bool,
    /// What has no effect or cannot be kept.
    pub warnings: Vec<ProblemReply>,
}

/// `GET /v1/config`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
pub struct ConfigReply {
    /// 1.
    pub version: u32,
    /// Grows by 1 with each change; a daemon that starts begins at the clock's milliseconds.
    pub revision: u64,
    /// The configuration that runs, in the form of the file; its schema is `GET /v1/schema`.
    pub config: Keys,
}

/// The answer where something could not be done.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
pub struct ErrorReply {
    /// 1.
    pub version: u32,
    /// What went wrong.
    pub error: String,
    /// Where a change was refused: why.
    pub problems: Vec<ProblemReply>,
}

/// One thing that is wrong.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
pub struct ProblemReply {
    /// Where: `endpoint s1/red/red1, guarantee`.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub remedy: String,
}

impl From<&Problem> for ProblemReply {
    fn from(problem: &Problem) -> ProblemReply {
        ProblemReply { key: problem.key.clone(), message: problem.message.clone(), remedy: problem.remedy.clone() }
    }
}

impl ErrorReply {
    /// An error without problems of a configuration.
    #[must_use]
    pub fn new(error: impl Into<String>) -> ErrorReply {
        ErrorReply { version: VERSION, error: error.into(), problems: Vec::new() }
    }

    /// As a person reads it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.error.clone();
        for problem in &self.problems {
            text += &problem.text("error");
        }
        text
    }
}

impl ProblemReply {
    /// As a person reads it, on lines of its own.
    #[must_use]
    pub fn text(&self, severity: &str) -> String {
        let mut text = format!("\n{severity}: {}\n  = key: {}", self.message, self.key);
        if !self.remedy.is_empty() {
            text += &format!("\n  = help: {}", self.remedy);
        }
        text
    }
}
