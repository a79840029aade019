//! Questions: what takes a while to answer. They are answered at the worker's own turns, one at a
//! turn, so all who look together take no more of its time than it has for itself.

use super::{Request, Worker};

impl Request {
    /// Whether anybody waits for the answer to this question.
    fn is_wanted(&self) -> bool {
        match self {
            Request::Learned { reply, .. } => reply.is_wanted(),
            Request::Services { reply, .. } => reply.is_wanted(),
            Request::Connections { reply, .. } => reply.is_wanted(),
            Request::Vcc { reply, .. } => reply.is_wanted(),
            Request::Agent { reply, .. } => reply.is_wanted(),
            _ => false,
        }
    }
}

impl Worker {
    /// Whether there are questions.
    pub(super) fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Puts a question behind the others. Those that nobody waits for any more are left out.
    pub(super) fn ask(&mut self, question: Request) {
        self.questions.retain(Request::is_wanted);
        self.questions.push_back(question);
    }

    /// Answers the next question.
    pub(super) fn answer(&mut self) {
        match self.questions.pop_front() {
            Some(question) if !question.is_wanted() => {}
            Some(Request::Learned { switch, from, reply }) => reply.give(self.learned(switch, from)),
            Some(Request::Services { switch, which, reply }) => reply.give(self.services(switch, which)),
            Some(Request::Connections { switch, service, client, from, reply }) => {
                reply.give(self.connections(switch, (service, client), from));
            }
            Some(Request::Vcc { switch, from, most, wanted, reply }) => {
                reply.give(self.vcc(switch, from, most, wanted.as_deref()));
            }
            Some(Request::Agent { switch, from, reply }) => reply.give(self.agent(switch, from)),
            _ => {}
        }
    }

    /// Answers all.
    pub(super) fn answer_all(&mut self) {
        while self.has_questions() {
            self.answer();
        }
    }
}
