//! The OpenAPI description (3.1) of what is served: `GET /v1/openapi.json`. Schemas come from the
//! types of the answers and from `control::schema`; the tests compare paths with `routes` and real
//! answers with the schemas.

use super::routes::BODY_BYTES;
use crate::api::agents::AgentsReply;
use crate::api::bonds::BondsReply;
use crate::api::cluster::ClusterReply;
use crate::api::report::Report;
use crate::api::services::{ConnectionsReply, ConnectionsRequest, LoadReply, LoadRequest, ServicesReply};
use crate::api::tables::TablesReply;
use crate::api::trace::{TraceReply, TraceRequest};
use crate::api::tunnels::TunnelsReply;
use crate::api::vcc::{VccReply, VccRequest};
use crate::api::{ChangeReply, ConfigReply, ErrorReply};
use control::action::Kind;
use control::schema;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The description.
#[must_use]
pub fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let report = generator.subschema_for::<Report>();
    let tables = generator.subschema_for::<TablesReply>();
    let cluster = generator.subschema_for::<ClusterReply>();
    let agents = generator.subschema_for::<AgentsReply>();
    let bonds = generator.subschema_for::<BondsReply>();
    let tunnels = generator.subschema_for::<TunnelsReply>();
    let vcc = generator.subschema_for::<VccReply>();
    let flows = [generator.subschema_for::<VccRequest>(), vcc.clone()];
    let config = generator.subschema_for::<ConfigReply>();
    let change = generator.subschema_for::<ChangeReply>();
    let trace = [generator.subschema_for::<TraceRequest>(), generator.subschema_for::<TraceReply>()];
    let services = generator.subschema_for::<ServicesReply>();
    let connections = [generator.subschema_for::<ConnectionsRequest>(), generator.subschema_for::<ConnectionsReply>()];
    let load = [generator.subschema_for::<LoadRequest>(), generator.subschema_for::<LoadReply>()];
    let error = generator.subschema_for::<ErrorReply>();
    let mut schemas = definitions(&mut generator);
    schemas["Action"] = action();
    schemas["Actions"] = actions();
    schemas["Configuration"] = schema::config();
    schemas["ConfigReply"]["properties"]["config"] = json!({"$ref": "#/components/schemas/Configuration"});
    let fails = |codes: &[(&str, &str)]| {
        let mut all = serde_json::Map::new();
        for (code, why) in [
            &[
                ("403", "the client has no right to this"),
                ("500", "it failed; the daemon's log has why"),
                ("503", "too many clients, no memory for the request, or the worker is busy; try again"),
            ],
            codes,
        ]
        .concat()
        {
            all.insert(code.into(), json!({"description": why, "content": {"application/json": {"schema": error}}}));
        }
        all
    };
    let get = |id: &str, summary: &str, schema: Value| {
        let mut responses = fails(&[]);
        responses
            .insert("200".into(), json!({"description": "done", "content": {"application/json": {"schema": schema}}}));
        json!({"get": {"operationId": id, "summary": summary, "responses": responses}})
    };
    let mut post = fails(&[
        ("400", "the body is not a list of actions"),
        ("408", "the body did not arrive in time"),
        ("409", "the configuration is at another revision"),
        ("413", "the body is too long"),
        ("415", "the body is not JSON"),
        ("422", "the change is refused, and nothing was changed; `problems` has the reasons"),
        ("500", "the change could not be made, and nothing was changed"),
    ]);
    post.insert(
        "200".into(),
        json!({"description": "done, or with `dry_run` possible", "content": {"application/json": {"schema": change}}}),
    );
    let mut traced = fails(&[
        ("400", "the body is not a trace request, or its filter or frame is not valid"),
        ("408", "the body did not arrive in time"),
        ("413", "the body is too long"),
        ("415", "the body is not JSON"),
    ]);
    traced.insert("200".into(), json!({"description": "done", "content": {"application/json": {"schema": trace[1]}}}));
    let asked = |id: &str, summary: &str, [request, reply]: &[schemars::Schema; 2]| {
        let mut responses = fails(&[
            ("400", "the body is no such request, or there is no such service"),
            ("408", "the body did not come in time"),
            ("413", "the body is too long"),
            ("415", "the body is not JSON"),
        ]);
        responses
            .insert("200".into(), json!({"description": "done", "content": {"application/json": {"schema": reply}}}));
        let body = json!({"required": true, "content": {"application/json": {"schema": request}}});
        json!({"post": {"operationId": id, "summary": summary, "requestBody": body, "responses": responses}})
    };
    let mut metrics = fails(&[]);
    let text = json!({"application/openmetrics-text": {"schema": {"type": "string"}}});
    metrics.insert("200".into(), json!({"description": "done", "content": text}));
    let any = || json!({"type": "object"});
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Levada",
            "version": "1",
            "description": "The control socket of a Levada daemon: HTTP/1.1 on the Unix socket control.sock in its run directory. A connection is one request. Answers have `version` 1: keys may be added, none changes its meaning.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://levada", "description": "over the Unix socket; the host is ignored"}],
        "paths": {
            "/v1/report": get("report", "What was promised, carried and dropped since the daemon's start", json!(report)),
            "/v1/tables": get("tables", "The addresses that are declared and learned, by tenant", json!(tables)),
            "/v1/cluster": get("cluster", "The other hosts of the cluster, and the connections with them", json!(cluster)),
            "/v1/agents": get("agents", "The limits that the congestion agents have sent and received", json!(agents)),
            "/v1/bonds": get("bonds", "The uplinks that have several ports: members, order, what LACP has agreed on", json!(bonds)),
            "/v1/tunnels": get("tunnels", "The tunnels to other hosts, and their next hops", json!(tunnels)),
            "/v1/services": get("services", "The services: what their backends have in flight, what was refused", json!(services)),
            "/v1/connections": asked("connections", "The connections of one service", &connections),
            "/v1/load": asked("load", "Tells the load average of a service's backend", &load),
            "/v1/vcc/connections": asked("vcc_connections", "Connections that virtual congestion control knows, by their ends", &flows),
            "/v1/vcc": get("vcc", "What virtual congestion control does, by endpoint and connection", json!(vcc)),
            "/v1/metrics": {"get": {
                "operationId": "metrics",
                "summary": "The report as OpenMetrics text",
                "responses": metrics,
            }},
            "/v1/config": get("config", "The configuration that runs", json!(config)),
            "/v1/schema": get("schema", "JSON schema of the configuration", any()),
            "/v1/openapi.json": get("openapi", "This description", any()),
            "/v1/actions": {"post": {
                "operationId": "actions",
                "summary": "Changes the configuration: all of the actions are done, or none",
                "requestBody": {
                    "required": true,
                    "description": format!("at most {BODY_BYTES} bytes"),
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Actions"}}},
                },
                "responses": post,
            }},
            "/v1/trace": {"post": {
                "operationId": "trace",
                "summary": "Follows frames through the switches, or describes what would happen to one; the answer comes at the end of the trace",
                "requestBody": {"required": true, "content": {"application/json": {"schema": trace[0]}}},
                "responses": traced,
            }},
        },
        "components": {"schemas": schemas},
    })
}

fn definitions(generator: &mut SchemaGenerator) -> Value {
    Value::Object(generator.take_definitions(true))
}

/// One of what each kind of thing takes.
fn action() -> Value {
    let mut forms = Vec::new();
    for kind in Kind::ALL {
        let form = |word: &str, keys: Option<Value>| {
            let mut properties = json!({"action": {"const": word}, "kind": {"const": kind.word()}, "path": path(kind)});
            let mut required = vec!["action", "kind"];
            if word != "set" || !kind.path_form().is_empty() {
                required.push("path");
            }
            if let Some(keys) = keys {
                if keys["required"].as_array().is_some_and(|list| !list.is_empty()) || word == "set" {
                    required.push("keys");
                }
                properties["keys"] = keys;
            }
            json!({"type": "object", "title": format!("{word} {}", kind.word()), "additionalProperties": false,
                "properties": properties, "required": required})
        };
        // A bond comes and goes with its uplink.
        if !matches!(kind, Kind::Daemon | Kind::Bond) {
            forms.push(form("add", Some(schema::thing(kind, false))));
            forms.push(form("del", None));
        }
        forms.push(form("set", Some(schema::thing(kind, true))));
    }
    json!({"oneOf": forms})
}

fn path(kind: Kind) -> Value {
    json!({"type": "string", "description": kind.path_form()})
}

fn actions() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["actions"],
        "properties": {
            "actions": {"type": "array", "items": {"$ref": "#/components/schemas/Action"}},
            "revision": {"type": ["integer", "null"], "minimum": 0, "description": "the revision that the actions are meant for"},
            "dry_run": {"type": "boolean", "description": "only check"},
            "namespaces": {
                "type": "array",
                "items": {"type": "string"},
                "description": "paths of network namespaces of which descriptors come beside the request (SCM_RIGHTS), in this order",
            },
        },
    })
}
