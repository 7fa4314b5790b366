// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the files of example/ecosystem/deploy: the Dockerfile, compose.yaml and
// the Kubernetes manifests. They are parsed by the code of Docker and Kubernetes, and their pods
// run as containers.
package deploy
