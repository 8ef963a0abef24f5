//! Retry policies: the presets, and what a policy would do.

use std::time::Duration;

use axum::extract::Request;
use http::{StatusCode, Uri};
use posthaste_core::policy::{
    BreakerSpec, JitterSpec, PRESETS, Policy, PolicySpec, Preview, TierSpec, TiersSpec, UnknownPolicy,
};
use posthaste_core::tier::Tier;
use serde::Serialize;

use super::caller::{Caller, READ};
use super::{Answer, body, json, no_parameters};
use crate::object::Object;
use crate::problem::{Code, Complaint, Problem};
use crate::{duration, value};

/// `GET /v1/policies`: the presets, as somebody would write them.
pub async fn list(_: Caller<READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let shown = PRESETS.iter().filter_map(|name| Some(Shown::of(name, &PolicySpec::preset(name)?))).collect();
    Ok(json(StatusCode::OK, &List { data: shown, next_cursor: None }))
}

/// `POST /v1/policies/preview`.
pub async fn preview(_: Caller<READ>, request: Request) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read(&body)?;
    let is_name = |raw: &&serde_json::value::RawValue| raw.get().starts_with('"');
    let written = fields.need("policy", Ok);
    let mut inline =
        Object::read_optional(written.filter(|raw| !is_name(raw)).map_or(&[], |raw| raw.get().as_bytes()))?
            .within("/policy");
    let spec = match written {
        Some(raw) if is_name(&raw) => named(&mut fields, &value::text(raw).unwrap_or_default()),
        _ => spec(&mut inline),
    };
    fields.absorb(inline);
    let tier = fields.get("tier", value::tier).unwrap_or_default();
    let ttl = fields.get("ttl", value::ttl);
    fields.finish()?;
    let policy = Policy::build(&spec).map_err(|bad| {
        let at = |one: posthaste_core::policy::BadPolicy| Complaint {
            pointer: format!("/policy/{}", one.field.replace(['.', '['], "/").replace(']', "")),
            detail: one.reason,
        };
        Problem::of_body(Code::InvalidBody, bad.into_iter().map(at).collect())
    })?;
    Ok(json(StatusCode::OK, &Previewed::of(&policy.preview(tier, ttl))))
}

fn named(fields: &mut Object<'_>, name: &str) -> PolicySpec {
    PolicySpec::preset(name).unwrap_or_else(|| {
        fields.complain("policy", UnknownPolicy::new(name).to_string());
        PolicySpec::default()
    })
}

fn spec(fields: &mut Object<'_>) -> PolicySpec {
    let mut jitter = fields.object("jitter");
    let jitter_spec = JitterSpec { kind: jitter.get("kind", value::text), share: jitter.get("share", value::number) };
    fields.absorb(jitter);
    let mut tiers = fields.object("tiers");
    let [transactional, promotional, engagement] = Tier::ALL.map(|tier| {
        let mut variant = tiers.object(tier.name());
        let spec =
            TierSpec { scale: variant.get("scale", value::number), first: variant.get("first", value::duration) };
        tiers.absorb(variant);
        spec
    });
    fields.absorb(tiers);
    let mut breaker = fields.object("breaker");
    let breaker_spec = BreakerSpec {
        failure_rate: breaker.get("failure_rate", value::number),
        min_volume: breaker.get("min_volume", value::whole),
        consecutive: breaker.get("consecutive", value::whole),
        open_for: breaker.get("open_for", value::duration),
    };
    fields.absorb(breaker);
    PolicySpec {
        strategy: fields.get("strategy", value::text),
        base: fields.get("base", value::duration),
        multiplier: fields.get("multiplier", value::number),
        cap: fields.get("cap", value::duration),
        step: fields.get("step", value::duration),
        delays: fields.get("delays", value::durations),
        jitter: jitter_spec,
        max_attempts: fields.get("max_attempts", value::whole),
        window: fields.get("window", value::duration),
        retry_after_max: fields.get("retry_after_max", value::duration),
        tiers: TiersSpec { transactional, promotional, engagement },
        breaker: breaker_spec,
    }
}

/// What a policy would do, as the API writes it; `posthaste policy preview --json` prints the same.
#[derive(Debug, Serialize)]
pub struct Previewed {
    waits: Vec<Wait>,
    largest_wait: String,
    survives: String,
    notes: Vec<String>,
    text: String,
}

#[derive(Debug, Serialize)]
struct Wait {
    retry: u16,
    after: String,
    earliest: String,
    latest: String,
    since_accept: String,
}

impl Previewed {
    /// A preview in the API's form.
    pub fn of(preview: &Preview) -> Self {
        let wait = |wait: &posthaste_core::policy::Wait| Wait {
            retry: wait.retry,
            after: duration::write(wait.after),
            earliest: duration::write(wait.earliest),
            latest: duration::write(wait.latest),
            since_accept: duration::write(wait.since_accept),
        };
        Self {
            waits: preview.waits.iter().map(wait).collect(),
            largest_wait: duration::write(preview.largest_wait),
            survives: duration::write(preview.survives),
            notes: preview.notes.clone(),
            text: preview.text.clone(),
        }
    }
}

#[derive(Serialize)]
struct List {
    data: Vec<Shown>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct Shown {
    name: &'static str,
    preset: bool,
    strategy: Option<String>,
    base: Option<String>,
    multiplier: Option<f64>,
    cap: Option<String>,
    step: Option<String>,
    delays: Option<Vec<String>>,
    jitter: ShownJitter,
    max_attempts: Option<u64>,
    window: Option<String>,
    retry_after_max: Option<String>,
    tiers: ShownTiers,
    breaker: ShownBreaker,
}

#[derive(Serialize)]
struct ShownJitter {
    kind: Option<String>,
    share: Option<f64>,
}

#[derive(Serialize)]
struct ShownTiers {
    transactional: ShownTier,
    promotional: ShownTier,
    engagement: ShownTier,
}

#[derive(Serialize)]
struct ShownTier {
    scale: Option<f64>,
    first: Option<String>,
}

#[derive(Serialize)]
struct ShownBreaker {
    failure_rate: Option<f64>,
    min_volume: Option<u64>,
    consecutive: Option<u64>,
    open_for: Option<String>,
}

impl Shown {
    fn of(name: &'static str, spec: &PolicySpec) -> Self {
        let write = |duration: Option<Duration>| duration.map(duration::write);
        let tier = |tier: &TierSpec| ShownTier { scale: tier.scale, first: write(tier.first) };
        Self {
            name,
            preset: true,
            strategy: spec.strategy.clone(),
            base: write(spec.base),
            multiplier: spec.multiplier,
            cap: write(spec.cap),
            step: write(spec.step),
            delays: spec.delays.as_ref().map(|delays| delays.iter().copied().map(duration::write).collect()),
            jitter: ShownJitter { kind: spec.jitter.kind.clone(), share: spec.jitter.share },
            max_attempts: spec.max_attempts,
            window: write(spec.window),
            retry_after_max: write(spec.retry_after_max),
            tiers: ShownTiers {
                transactional: tier(&spec.tiers.transactional),
                promotional: tier(&spec.tiers.promotional),
                engagement: tier(&spec.tiers.engagement),
            },
            breaker: ShownBreaker {
                failure_rate: spec.breaker.failure_rate,
                min_volume: spec.breaker.min_volume,
                consecutive: spec.breaker.consecutive,
                open_for: write(spec.breaker.open_for),
            },
        }
    }
}
