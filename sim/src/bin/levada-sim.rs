//! Runs scenarios and prints their tables: `levada-sim [SCENARIO] [--seed N] [--seconds S]
//! [--json] [--progress]`.

use std::process::ExitCode;
use std::time::Instant;

use sim::chaos;
use sim::scenario::{ALL, Options, Scenario};
use sim::shuffle::{Cell, Guests, Job, MOST_PAIRS, QUEUES};
use sim::work::{Work, Workplace};

const USAGE: &str = "usage: levada-sim [SCENARIO] [--seed N] [--seconds S] [--json] [--progress]
       levada-sim chaos [--seed N]
       levada-sim work KIND OPERATIONS
       levada-sim shuffle QUEUE GUESTS PAIRS SEED [all-capable] [late-marks] < JOB

Without a scenario, all that print the same every time are run. The same seed prints the same, bit for bit.
The exit status is 0 when all claims hold, 1 when one does not, 2 when nothing could be played.
`chaos` builds a random network from the seed and checks that nothing breaks.
`shuffle` plays a MapReduce job, described on standard input, beside endless flows, and prints what became of it.
`work` does what a switch does again and again, to be counted by others: forward, cut-32, cut-1400, copy or vcc-echo,
say; all are in sim/src/work.rs.
With --progress some scenarios say on standard error how many of their cells were played.

scenarios:";

struct Request {
    scenario: Option<String>,
    seed: u64,
    seconds: Option<u64>,
    json: bool,
    progress: bool,
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("work") => return work(),
        Some("shuffle") => {
            return shuffle().map_or_else(
                |error| {
                    eprintln!("levada-sim: {error}");
                    ExitCode::from(2)
                },
                |()| ExitCode::SUCCESS,
            );
        }
        _ => {}
    }
    match parse(std::env::args().skip(1)).and_then(|request| answer(&request)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("levada-sim: {error}");
            ExitCode::from(2)
        }
    }
}

/// Does so many operations of a kind, and says how many they were and how long one took.
fn work() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let kind = words.first().and_then(|name| Work::ALL.iter().find(|(known, _)| known == name));
    let (Some(&(_, work)), Some(Ok(most))) = (kind, words.get(1).map(|number| number.parse::<u64>())) else {
        eprintln!("levada-sim: work needs a kind and a number of operations\n{}", usage());
        return ExitCode::from(2);
    };
    let (mut place, mut done, start) = (Workplace::new(work), 0, Instant::now());
    while done < most {
        done += place.step();
    }
    println!("{done} operations, {:.1} ns each", start.elapsed().as_nanos() as f64 / done as f64);
    ExitCode::SUCCESS
}

/// Plays one cell of a shuffle and prints it.
fn shuffle() -> Result<(), String> {
    let mut words: Vec<String> = std::env::args().skip(2).collect();
    let mut is_said = |option: &str| words.pop_if(|word| word == option).is_some();
    let late_marks = is_said("late-marks");
    let all_capable = is_said("all-capable");
    let [queue, guests, pairs, seed] = &words[..] else {
        return Err(format!("shuffle needs a queue, guests, pairs and a seed\n{}", usage()));
    };
    let names = |names: &[&str]| names.join(", ");
    let queues = QUEUES.map(|(name, ..)| name);
    let (_, discipline, bytes) = QUEUES
        .into_iter()
        .find(|(name, ..)| name == queue)
        .ok_or_else(|| format!("{queue}: no such queue; there are {}", names(&queues)))?;
    let known = Guests::NAMES.map(|(name, _)| name);
    let (_, guests) = Guests::NAMES
        .into_iter()
        .find(|(name, _)| name == guests)
        .ok_or_else(|| format!("{guests}: no such guests; there are {}", names(&known)))?;
    let number = |text: &String| text.parse::<u64>().map_err(|_| format!("{text}: not a number"));
    let pairs = usize::try_from(number(pairs)?)
        .ok()
        .filter(|&pairs| pairs <= MOST_PAIRS)
        .ok_or_else(|| format!("{pairs}: more pairs than {MOST_PAIRS}"))?;
    let cell = Cell { queue: (discipline, bytes), guests, pairs, all_capable, late_marks, seed: number(seed)? };
    let text = std::io::read_to_string(std::io::stdin()).map_err(|error| error.to_string())?;
    let outcome = sim::shuffle::play(&cell, &Job::read(&text)?).map_err(|violation| violation.to_string())?;
    println!("{}", outcome.json());
    Ok(())
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Request, String> {
    let mut request = Request { scenario: None, seed: 1, seconds: None, json: false, progress: false };
    while let Some(arg) = args.next() {
        let mut number = |name: &str| {
            let value = args.next().ok_or(format!("{name} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{name} {value}: not a number"))
        };
        match arg.as_str() {
            "--seed" => request.seed = number("--seed")?,
            "--seconds" => request.seconds = Some(number("--seconds")?).filter(|&s| s > 0),
            "--json" => request.json = true,
            "--progress" => request.progress = true,
            "--help" | "-h" => return Err(usage()),
            name if !name.starts_with('-') && request.scenario.is_none() => request.scenario = Some(name.into()),
            other => return Err(format!("{other}: not understood\n{}", usage())),
        }
    }
    Ok(request)
}

fn usage() -> String {
    ALL.iter().fold(USAGE.to_string(), |text, scenario| format!("{text}\n  {:<12}{}", scenario.name, scenario.about))
}

/// Whether all claims hold.
fn answer(request: &Request) -> Result<bool, String> {
    let Some(name) = &request.scenario else {
        let repeating = ALL.iter().filter(|scenario| scenario.repeats);
        return repeating.map(|scenario| print(scenario, request)).try_fold(true, |all, one| Ok(one? && all));
    };
    if name == "chaos" {
        let report = chaos::survive(request.seed)?;
        println!("{report}");
        return Ok(true);
    }
    let scenario = ALL.iter().find(|scenario| scenario.name == name);
    print(scenario.ok_or(format!("{name}: no such scenario\n{}", usage()))?, request)
}

/// Plays a scenario and prints it; whether its claims hold.
fn print(scenario: &Scenario, request: &Request) -> Result<bool, String> {
    let seconds = request.seconds.unwrap_or(scenario.seconds);
    let options = Options { seed: request.seed, seconds, tells: request.progress };
    let table = (scenario.run)(&options).map_err(|v| format!("{}, seed {}: {v}", scenario.name, options.seed))?;
    print!("{}", if request.json { table.json(scenario, &options) } else { table.text(scenario, &options) });
    if !request.json {
        println!();
    }
    Ok(table.claims.iter().all(|claim| claim.holds()))
}
