// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2/maybe"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// filePerms are what os.Create gives, before the umask.
const filePerms = 0o666

// WriteFile writes data to the file with this name: as gzipped pprof if it ends in
// .pb.gz, .pprof or .pprof.gz, as OTLP JSON if it ends in .json, and else as OTLP
// protobuf, each a ProfilesData message. A file appears complete or, after an error, not
// at all, and one that was there before stays until then (not on Windows, where files
// cannot be replaced so). A link is followed, and what is no regular file, such as
// /dev/stdout, is written to directly.
func WriteFile(path string, data *profilespb.ProfilesData) error {
	content, err := encode(path, data)
	if err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, content, filePerms)
	}
	return maybe.WriteFile(path, content, filePerms)
}

func encode(path string, data *profilespb.ProfilesData) ([]byte, error) {
	name := strings.ToLower(filepath.Base(path))
	switch {
	case strings.HasSuffix(name, ".pb.gz"), strings.HasSuffix(name, ".pprof"), strings.HasSuffix(name, ".pprof.gz"):
		p, err := profile.Pprof(data)
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		err = p.Write(&b)
		return b.Bytes(), err
	case strings.HasSuffix(name, ".json"):
		return MarshalJSON(data)
	default:
		return proto.MarshalOptions{Deterministic: true}.Marshal(data)
	}
}
