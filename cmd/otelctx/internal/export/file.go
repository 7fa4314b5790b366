// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"errors"
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
	path, regular := target(path)
	if !regular {
		return os.WriteFile(path, content, filePerms)
	}
	return maybe.WriteFile(path, content, filePerms)
}

// CheckFile returns an error if [WriteFile] could not write to the file with this name
// now. It leaves nothing behind.
func CheckFile(path string) error {
	path, regular := target(path)
	if !regular {
		f, err := os.OpenFile(path, os.O_WRONLY, 0) //nolint:gosec // G304: the user says where to write.
		if err != nil {
			return err
		}
		return f.Close()
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// target returns where to write what is meant for path, and whether that is a regular
// file or will be one.
func target(path string) (file string, regular bool) {
	if link, err := filepath.EvalSymlinks(path); err == nil {
		path = link
	}
	info, err := os.Stat(path)
	return path, err != nil || info.Mode().IsRegular()
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
