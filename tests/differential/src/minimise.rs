//! Simpler forms of a program, for a search for the simplest one that still shows a difference.

use crate::program::{Fill, Memory, Place, Program, Value};

/// Programs that are a little simpler than this one, the boldest first.
pub fn simpler(program: &Program) -> Vec<Program> {
    let mut forms = Vec::new();
    for index in (0..program.steps.len()).rev() {
        forms.push(without_step(program, index));
    }
    if program.actors.len() > 1 {
        forms.push(without_last_actor(program));
    }
    for (index, actor) in program
        .actors
        .iter()
        .enumerate()
        .filter(|(_, actor)| actor.nobody)
    {
        let mut form = program.clone();
        form.actors[index].nobody = false;
        if actor.nobody && (index > 0 || form.actors.iter().all(|actor| !actor.thread)) {
            forms.push(form);
        }
    }
    for (step, position) in program
        .steps
        .iter()
        .enumerate()
        .flat_map(|(step, made)| (0..made.arguments.len()).map(move |at| (step, at)))
    {
        for value in simpler_values(&program.steps[step].arguments[position]) {
            let mut form = program.clone();
            form.steps[step].arguments[position] = value;
            forms.push(form);
        }
    }
    forms
}

fn without_step(program: &Program, gone: usize) -> Program {
    let mut form = program.clone();
    form.steps.remove(gone);
    for argument in form.steps.iter_mut().flat_map(|step| &mut step.arguments) {
        renumber(argument, gone);
    }
    form
}

fn renumber(value: &mut Value, gone: usize) {
    match value {
        Value::Result(step, _) if *step == gone => *value = Value::Number(-1),
        Value::Result(step, _) if *step > gone => *step -= 1,
        Value::Memory(memory) => memory
            .fields
            .iter_mut()
            .for_each(|(_, _, value)| renumber(value, gone)),
        _ => {}
    }
}

fn without_last_actor(program: &Program) -> Program {
    let mut form = program.clone();
    form.actors.pop();
    let last = form.actors.len() - 1;
    for step in &mut form.steps {
        step.actor = step.actor.min(last);
        for argument in &mut step.arguments {
            if let Value::Who(actor) = argument {
                *actor = (*actor).min(last);
            }
        }
    }
    form
}

fn simpler_values(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(0) => Vec::new(),
        Value::Number(number) => {
            let mut simpler = vec![Value::Number(0)];
            if number.count_ones() > 1 && *number > 0 {
                simpler.extend(
                    (0..63)
                        .filter(|bit| number & 1 << bit != 0)
                        .map(|bit| Value::Number(number & !(1 << bit))),
                );
            }
            simpler
        }
        Value::Memory(memory) => simpler_memory(memory),
        Value::Path(path) if path != "a" => vec![Value::Path("a".into())],
        _ => Vec::new(),
    }
}

fn simpler_memory(memory: &Memory) -> Vec<Value> {
    let mut simpler = Vec::new();
    if memory.place != Place::At(0) {
        simpler.push(Memory {
            place: Place::At(0),
            ..memory.clone()
        });
    }
    if let Fill::Pattern(2..) = memory.fill {
        simpler.push(Memory {
            fill: Fill::Pattern(1),
            ..memory.clone()
        });
    }
    for (index, (_, _, value)) in memory.fields.iter().enumerate() {
        for value in simpler_values(value) {
            let mut form = memory.clone();
            form.fields[index].2 = value;
            simpler.push(form);
        }
    }
    simpler.into_iter().map(Value::Memory).collect()
}
