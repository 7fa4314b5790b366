// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance checks the publications of a running process, rule by rule, against OTEP 4719
// (process context), OTEP 4947 (thread context) and otelctx's own wire format. It reads the process
// like any reader and never writes to it.
//
// A check can prove that a publisher breaks a rule, but not that it always follows the rule. A rule passes if it
// was checked at least once and no violation was seen. A rule that was never checked is reported as
// [NotExercised].
package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Level says how binding a rule is.
type Level string

const (
	// Must is a requirement of the specification.
	Must Level = "MUST"
	// Should is a recommendation of the specification.
	Should Level = "SHOULD"
	// Reader is a requirement of known readers that the specification does not state.
	Reader Level = "READER"
)

// Rule is one of the rules that publishers are checked against.
type Rule struct {
	// ID is the permanent name of the rule, such as 4719-P6.
	ID    string `json:"id"`
	Level Level  `json:"level"`
	// Section names the specification and the section of it that states the rule.
	Section string `json:"section"`
	// Text is the rule in one sentence.
	Text string `json:"text"`
}

const (
	header      = "OTEP 4719, Header Structure"
	payload     = "OTEP 4719, Payload Format"
	publication = "OTEP 4719, Publication Protocol"
	updating    = "OTEP 4719, Updating Protocol"
	forking     = "OTEP 4719, Process Forking"
	reference   = "OTEP 4947, Thread-Local Reference Data"
	resolution  = "OTEP 4947, Thread-Local Variable Resolution"
	record      = "OTEP 4947, Thread-Local Context Record"
	goSupport   = "OTEP 4947, Alternative for Go support"
	ownTables   = "otelctx wire format"
)

// rules lists all rules in the order of the report.
var rules = []Rule{
	{"4719-H1", Must, header, "The signature is OTEL_CTX."},
	{"4719-H2", Must, header, "The version is 2 (1 in development)."},
	{"4719-H3", Must, header, "The timestamp is zero only while the context is being changed."},
	{"4719-H4", Should, header, "The timestamp is of CLOCK_BOOTTIME."},
	{"4719-H5", Must, header, "payload and payload_size name readable memory."},
	{"4719-H6", Reader, header, "The payload has at most 65,536 bytes, the limit of known readers."},
	{"4719-D1", Must, payload, "The payload is a ProcessContext message."},
	{"4719-D2", Must, payload, "Attribute keys are unique, also in maps inside attributes."},
	{"4719-D3", Should, payload, "Attributes follow the semantic conventions: keys are not empty, and service.name is a string."},
	{"4719-P2", Must, publication, "Step 2: the descriptor of the memfd, if it is still open, is closed on exec."},
	{"4719-P3", Must, publication, "Step 3: the mapping is private, readable, writable and not executable."},
	{"4719-P3b", Should, publication, "Step 3: the descriptor of the memfd is closed once the mapping exists."},
	{"4719-P5", Must, publication, "Step 5: the mapping is marked MADV_DONTFORK."},
	{"4719-P9", Must, publication, "Step 9: the timestamp is written last; once it is not zero, the whole header is valid."},
	{"4719-P10", Must, publication, "Step 10: the mapping is named OTEL_CTX where the kernel names mappings."},
	{"4719-P11", Must, publication, "There is not more than one process context."},
	{"4719-U1", Must, updating, "A later publication updates the header in place."},
	{"4719-U2", Must, updating, "Steps 2 to 5: payload, payload_size and the payload's bytes change only while the timestamp is zero."},
	{"4719-U6", Must, updating, "Step 6: every update has a later timestamp."},
	{"4719-U7", Must, updating, "Step 7: every update names the mapping again."},
	{"4719-F1", Must, forking, "Children of fork do not inherit the mapping."},

	{"4947-R1", Must, reference, "threadlocal.schema_version is a string."},
	{"4947-R2", Must, reference, "threadlocal.attribute_key_map is an array of at most 256 strings."},
	{"4947-R3", Must, reference, "threadlocal.attribute_key_map is only ever appended to."},
	{"4947-R4", Must, reference, "threadlocal.schema_version accompanies the other threadlocal keys."},
	{"4947-R5", Must, reference, "threadlocal keys are attributes of the context, not of its resource."},
	{"4947-R6", Must, reference, "threadlocal.attribute_key_map has no empty name."},

	{"4947-V1", Must, resolution, "otel_thread_ctx_v1 is a TLS symbol in the dynamic symbol table of the executable or of a library."},
	{"4947-V2", Must, resolution, "The symbol is accessed by a model that readers support."},
	{"4947-C1", Must, record, "The variable names readable memory."},
	{"4947-C2", Must, record, "The record is aligned to 2 bytes."},
	{"4947-C3", Must, record, "valid is 0 or 1."},
	{"4947-C4", Must, record, "trace-id and span-id are both set, or neither is."},
	{"4947-C5", Must, record, "trace-flags are zero if the ids are unset."},
	{"4947-C6", Must, record, "attrs-data-size ends with a complete attribute."},
	{"4947-C7", Must, record, "Key indexes are inside threadlocal.attribute_key_map."},
	{"4947-C8", Must, record, "Values are UTF-8."},
	{"4947-C9", Should, record, "The record has at most 640 bytes."},
	{"4947-G1", Should, goSupport, "A Go process has no key map or an empty one, unless its records have attributes."},

	{"otelctx-1", Must, ownTables, "Every advertised carrier can be read."},
	{"otelctx-2", Must, ownTables, "The advertised offsets lead from a thread to its goroutine, so that spans are proven."},
	{"otelctx-3", Must, ownTables, "Every live span has valid ids, a start in the past, and UTF-8 names."},
	{"otelctx-4", Must, ownTables, "A span that a thread is in is a live span."},
}

// Status is the outcome of checking a rule.
type Status string

const (
	// Passed means that the rule was checked and no violation was seen.
	Passed Status = "passed"
	// Failed means that at least one violation was seen.
	Failed Status = "failed"
	// NotExercised means that the rule was never checked. Either the process did nothing to which the rule
	// applies, or it could not be observed.
	NotExercised Status = "not exercised"
)

// Result is a rule and the outcome of checking it.
type Result struct {
	Rule
	Status Status `json:"status"`
	// Checks is the number of times the rule was checked.
	Checks int `json:"checks"`
	// Failures is the number of violations seen.
	Failures int `json:"failures"`
	// Evidence describes the first failures, explains why the rule was not checked, or says what it could not be
	// checked for. It may quote text chosen by the process.
	Evidence []string `json:"evidence"`
}

const (
	maxEvidence = 3   // failures described for each rule
	maxText     = 300 // bytes of each description
)

// report collects results by rule id.
type report map[string]*Result

func newReport() report {
	r := report{}
	for _, rule := range rules {
		r[rule.ID] = &Result{Rule: rule, Status: NotExercised, Evidence: []string{}}
	}
	return r
}

// results returns the results in the order of the rules.
func (r report) results() []Result {
	out := make([]Result, 0, len(rules))
	for _, rule := range rules {
		out = append(out, *r[rule.ID])
	}
	return out
}

// check counts a check of a rule and returns ok. If ok is false, the check counts as a failure, and format and
// args describe the evidence.
func (r report) check(id string, ok bool, format string, args ...any) bool {
	result := r[id]
	if result.Checks++; result.Checks == 1 {
		result.Evidence = []string{} // remove the reason recorded by skip
	}
	if ok {
		if result.Status == NotExercised {
			result.Status = Passed
		}
		return true
	}
	result.Status = Failed
	if result.Failures++; len(result.Evidence) < maxEvidence {
		result.Evidence = append(result.Evidence, cut(fmt.Sprintf(format, args...)))
	}
	return false
}

// skip records why a rule cannot be checked, unless it has already been checked.
func (r report) skip(id, format string, args ...any) {
	if result := r[id]; result.Checks == 0 {
		result.Evidence = []string{cut(fmt.Sprintf(format, args...))}
	}
}

// cannotCheck records err as the reason why a rule cannot be checked. If ctx is done, err says only that this check was
// cut off, and an earlier reason stays.
func (r report) cannotCheck(ctx context.Context, err error, id string) {
	switch {
	case ctx.Err() == nil:
		r.skip(id, "%v", err)
	case len(r[id].Evidence) == 0:
		r.skip(id, "the check did not end in time")
	}
}

// cannotCheckSections is like cannotCheck for all rules of some sections.
func (r report) cannotCheckSections(ctx context.Context, err error, sections ...string) {
	for _, rule := range rules {
		if slices.Contains(sections, rule.Section) {
			r.cannotCheck(ctx, err, rule.ID)
		}
	}
}

// note adds a remark to a rule's evidence that does not change its status. It does nothing if an earlier remark
// contains subject.
func (r report) note(id, subject, format string, args ...any) {
	result := r[id]
	if len(result.Evidence) < maxEvidence && !slices.ContainsFunc(result.Evidence, func(e string) bool { return strings.Contains(e, cut(subject)) }) {
		result.Evidence = append(result.Evidence, cut(fmt.Sprintf(format, args...)))
	}
}

// cut shortens a text to maxText bytes, and quotes it if it is not valid UTF-8. The text may come from the
// process.
func cut(s string) string {
	if len(s) > maxText {
		end := maxText
		for end > maxText-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end-- // Do not cut a character in two.
		}
		s = s[:end] + "…"
	}
	if !utf8.ValidString(s) {
		s = fmt.Sprintf("%q", s)
	}
	return s
}
