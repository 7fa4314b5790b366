// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"slices"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkMessage checks the payload of a publication.
func (c *contextChecker) checkMessage(body []byte) {
	message := new(processcontextpb.ProcessContext)
	err := proto.Unmarshal(body, message)
	if err == nil {
		err = checkFieldTypes(message.ProtoReflect())
	}
	if !c.check("4719-D1", err == nil, "%v; the payload begins with % x", err, body[:min(len(body), 32)]) {
		return
	}
	resource, attributes := message.GetResource().GetAttributes(), message.GetAttributes()
	for _, list := range []struct {
		name       string
		attributes []*commonpb.KeyValue
	}{{"resource", resource}, {"attributes", attributes}} {
		err := checkUnique(list.attributes)
		c.check("4719-D2", err == nil, "%s: %v", list.name, err)
		empty := slices.ContainsFunc(list.attributes, func(kv *commonpb.KeyValue) bool { return kv.GetKey() == "" })
		c.check("4719-D3", !empty, "%s has an empty key", list.name)
	}
	err = checkServiceName(resource)
	c.check("4719-D3", err == nil, "%v", err)
	c.checkReference(resource, attributes)
}

// skipMessage records why the message in the payload is not checked.
func (c *contextChecker) skipMessage(reason string) {
	for _, rule := range rules {
		if rule.Section == payload {
			c.skip(rule.ID, "%s", reason)
		}
	}
}

// checkFieldTypes returns an error if a field of m, or of a message inside it, is encoded as another type than the
// schema says. A decoder treats such a field as unknown, so its value is missing.
func checkFieldTypes(m protoreflect.Message) error {
	for unknown := []byte(m.GetUnknown()); len(unknown) > 0; {
		number, wireType, size := protowire.ConsumeField(unknown)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if field := m.Descriptor().Fields().ByNumber(number); field != nil {
			return fmt.Errorf("%s has wire type %d", field.FullName(), wireType)
		}
		unknown = unknown[size:]
	}
	var err error
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				if err == nil {
					err = checkFieldTypes(value.List().Get(i).Message())
				}
			}
		default:
			err = checkFieldTypes(value.Message())
		}
		return err == nil
	})
	return err
}

// checkUnique returns an error if a key occurs more than once in attributes, or in a map inside one of them.
func checkUnique(attributes []*commonpb.KeyValue) error {
	seen := make(map[string]bool, len(attributes))
	for _, kv := range attributes {
		if seen[kv.GetKey()] {
			return fmt.Errorf("the key %q occurs more than once", kv.GetKey())
		}
		seen[kv.GetKey()] = true
		if err := checkUniqueIn(kv.GetValue()); err != nil {
			return err
		}
	}
	return nil
}

func checkUniqueIn(value *commonpb.AnyValue) error {
	for _, v := range value.GetArrayValue().GetValues() {
		if err := checkUniqueIn(v); err != nil {
			return err
		}
	}
	return checkUnique(value.GetKvlistValue().GetValues())
}

func checkServiceName(resource []*commonpb.KeyValue) error {
	i := slices.IndexFunc(resource, func(kv *commonpb.KeyValue) bool { return kv.GetKey() == "service.name" })
	if i < 0 {
		return errors.New("the resource has no service.name")
	}
	switch v := resource[i].GetValue().GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		if v.StringValue == "" {
			return errors.New("service.name is empty")
		}
		return nil
	default:
		return fmt.Errorf("service.name is not a string, but %v", resource[i].GetValue())
	}
}
