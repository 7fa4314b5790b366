// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//! A publisher in Rust of a process context (OTEP 4719) and of thread contexts (OTEP 4947), written against their texts. A thread-local
//! symbol cannot be exported from stable Rust, so native.c has it. Prints "TID NUMBER" for each thread and "ready", and then publishes
//! again for each line of standard input.

use std::io::{BufRead, Write};
use std::sync::{Arc, Barrier};

extern "C" {
    fn otel_publish(payload: *const u8, size: u32) -> i32;
    fn otel_attach(record: *const u8, size: u32);
    fn gettid() -> i32;
}

fn field(number: u8, data: &[u8]) -> Vec<u8> {
    assert!(data.len() < 128 * 128);
    let mut out = vec![number << 3 | 2];
    if data.len() > 127 {
        out.push(data.len() as u8 | 128);
        out.push((data.len() >> 7) as u8);
    } else {
        out.push(data.len() as u8);
    }
    out.extend_from_slice(data);
    out
}

fn key_value(outer: u8, key: &str, value: &[u8]) -> Vec<u8> {
    field(outer, &[field(1, key.as_bytes()), field(2, value)].concat())
}

fn text(s: &str) -> Vec<u8> {
    field(1, s.as_bytes())
}

fn publish() {
    let keys = field(5, &field(1, &text("worker")));
    let payload = [
        field(1, &key_value(1, "service.name", &text("rust-publisher"))),
        key_value(2, "threadlocal.schema_version", &text("tlsdesc_v1_dev")),
        key_value(2, "threadlocal.attribute_key_map", &keys),
    ]
    .concat();
    assert_eq!(0, unsafe { otel_publish(payload.as_ptr(), payload.len() as u32) });
}

fn main() {
    publish();
    let threads = 3;
    let started = Arc::new(Barrier::new(threads + 1));
    for number in 0..threads as u8 {
        let started = started.clone();
        std::thread::spawn(move || {
            let name = format!("{:02}", number);
            let mut record = [vec![number + 1; 16], vec![number + 101; 8], vec![1, 1]].concat();
            record.extend_from_slice(&(2 + name.len() as u16).to_ne_bytes());
            record.extend_from_slice(&[0, name.len() as u8]);
            record.extend_from_slice(name.as_bytes());
            unsafe { otel_attach(record.as_ptr(), record.len() as u32) };
            println!("{} {}", unsafe { gettid() }, number);
            started.wait();
            loop {
                std::thread::park();
            }
        });
    }
    started.wait();
    println!("ready");
    for _ in std::io::stdin().lock().lines() {
        publish();
        println!("done");
        std::io::stdout().flush().unwrap();
    }
}
