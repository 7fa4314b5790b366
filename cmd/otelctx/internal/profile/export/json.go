// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"
)

// MarshalJSON returns data in OTLP's JSON encoding: protobuf's own, with the ids of
// traces, spans and profiles in hex instead of base64. Equal messages give equal bytes.
func MarshalJSON(data *profilespb.ProfilesData) ([]byte, error) {
	document, err := jsonDocument(data)
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	return append(encoded, '\n'), nil
}

// jsonDocument returns what encoding/json turns into OTLP's JSON encoding of data.
func jsonDocument(data *profilespb.ProfilesData) (map[string]any, error) {
	encoded, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(data)
	if err != nil {
		return nil, err
	}
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber() // a float64 does not hold every number
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	for link := range objects(document, "dictionary", "linkTable") {
		if err := toHex(link, "traceId", "spanId"); err != nil {
			return nil, err
		}
	}
	for p := range objects(document, "resourceProfiles", "scopeProfiles", "profiles") {
		if err := toHex(p, "profileId"); err != nil {
			return nil, err
		}
	}
	return document, nil
}

// objects yields the objects that path leads to from value, through each element of
// the arrays on the way.
func objects(value any, path ...string) func(yield func(map[string]any) bool) {
	return func(yield func(map[string]any) bool) { visit(value, path, yield) }
}

func visit(value any, path []string, yield func(map[string]any) bool) bool {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			if !visit(element, path, yield) {
				return false
			}
		}
	case map[string]any:
		if len(path) == 0 {
			return yield(v)
		}
		return visit(v[path[0]], path[1:], yield)
	}
	return true
}

// toHex makes hex of the fields that are base64.
func toHex(object map[string]any, fields ...string) error {
	for _, field := range fields {
		text, ok := object[field].(string)
		if !ok {
			continue // empty, and so left out
		}
		id, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		object[field] = hex.EncodeToString(id)
	}
	return nil
}
