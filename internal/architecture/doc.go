// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package architecture tests how the project is put together. It has tests of who
// imports whom, where the dangerous tools are used, and how the modules find each
// other. Others check that exported names are documented, how long sentences are, and
// what the workflows may run.
//
// Its tables are the only place where this is written down. A test that fails says which
// row has to change; whether it may is a question for the review of that change.
package architecture
