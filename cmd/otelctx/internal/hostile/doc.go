// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostile has tests only: programs that attack who records them, and what otelctx
// makes of it.
//
// OTELCTX_TEST_COMMAND names another otelctx to attack. Each attack worked on the otelctx
// from before the recorder trusted nobody (commit 5c28b4b):
//
//	test                  what that otelctx did
//	TestSetuidExec        showed 24 bytes of the privileged program as a trace's id
//	TestKernelAddresses   showed addresses of the kernel to an ordinary user
//	TestExec              gave the next program's memory and stacks to the service before it
//	TestReusedPID         gave those of another process to the dead service
//	TestBeside
//	  no profile can have wrote no file: resource 3: key ""
//	  60,000 mappings     did not end when it was interrupted
//	  a million symbols   did not come to record the service, for two minutes
//	  random frames       lost up to 10,182 of 16,901 samples, those of the service too
//	  new attributes      recorded the service as it should
//	  stalling readers    did not come to record the service, for two minutes
//	TestStalled           left the service out of the list
//	TestPlantedOutput     wrote through the link, and files for everybody to read (0666)
//	TestFilesAreNotOpened opened the pipe
//	TestStalledFile       did not end when it was interrupted
//	TestCrowd             took no sample of the service (make test-all runs it)
//	TestOutputs           took up to 2,025 MiB (before attributes counted, commit 2905e87)
//	TestForeignCapacity   showed no span of a ring whose capacity is no power of two
//
// TestDenied is about the library in the service, and passes with any otelctx.
package hostile
