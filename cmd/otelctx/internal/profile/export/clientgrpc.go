// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"fmt"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// grpcTransport sends profiles over OTLP/gRPC.
type grpcTransport struct {
	connection *grpc.ClientConn
	headers    metadata.MD
	options    []grpc.CallOption
}

func newGRPCTransport(c config) (*grpcTransport, error) {
	t := &grpcTransport{headers: c.headers, options: []grpc.CallOption{grpc.ForceCodec(encoded{}), grpc.MaxCallRecvMsgSize(maxResponse)}}
	if c.gzip {
		t.options = append(t.options, grpc.UseCompressor(gzip.Name))
	}
	security := insecure.NewCredentials()
	if c.tls != nil {
		security = credentials.NewTLS(c.tls)
	}
	var err error
	t.connection, err = grpc.NewClient(c.target, grpc.WithTransportCredentials(security), grpc.WithUserAgent(userAgent()),
		grpc.WithMaxHeaderListSize(maxResponse))
	return t, err
}

func (t *grpcTransport) Close() error {
	if err := t.connection.Close(); status.Code(err) != codes.Canceled {
		return err
	}
	return nil
}

const exportMethod = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"

// encoded is a gRPC codec that takes requests already encoded as protobuf, and decodes protobuf responses.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not encoded", v)
	}
	return b, nil
}

func (encoded) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", v)
	}
	return proto.Unmarshal(b, m)
}

func (t *grpcTransport) send(ctx context.Context, encoded []byte) (*collectorpb.ExportProfilesServiceResponse, error) {
	ctx = metadata.NewOutgoingContext(ctx, t.headers)
	response := &collectorpb.ExportProfilesServiceResponse{}
	if err := t.connection.Invoke(ctx, exportMethod, encoded, response, t.options...); err != nil {
		return nil, grpcFailure(err)
	}
	return response, nil
}

// grpcFailure converts an error of a gRPC call. As the OTLP specification requires, the status code determines
// whether another attempt may succeed.
func grpcFailure(err error) *failure {
	f := &failure{error: err}
	s := status.Convert(err)
	f.error = status.Error(s.Code(), foreignText(s.Message())) // omits the details, which may be large
	mayRetry := false
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			f.after, mayRetry = info.GetRetryDelay().AsDuration(), true
		}
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		f.again = true
	case codes.ResourceExhausted:
		f.again = mayRetry
	default:
	}
	return f
}
