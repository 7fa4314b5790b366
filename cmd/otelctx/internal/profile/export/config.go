// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
)

const (
	defaultEndpoint     = "http://localhost:4317"
	defaultPort         = "4317"
	defaultHTTPEndpoint = "http://localhost:4318"
	defaultTimeout      = 10 * time.Second
	// schemeTLS is the scheme of URLs with TLS, for either protocol.
	schemeTLS = "https"
	// profilesPath is the path for profiles in OTLP/HTTP.
	profilesPath = "/v1development/profiles"
)

// The supported values of OTEL_EXPORTER_OTLP_PROTOCOL.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// config describes how to reach a collector.
type config struct {
	protocol string
	target   string      // gRPC target, or URL for HTTP
	tls      *tls.Config // nil disables TLS
	headers  metadata.MD
	timeout  time.Duration
	gzip     bool
}

// environment looks up an environment variable. Empty variables count as unset.
type environment func(name string) string

// profilesPrefix is the prefix of variables that apply to profiles only.
const profilesPrefix = "OTEL_EXPORTER_OTLP_PROFILES_"

// setting returns the value and the full name of a variable of the OTLP exporter, given its name without prefix.
// The variable for profiles takes precedence over the variable for all signals.
func (e environment) setting(name string) (value, variable string) {
	for _, variable := range []string{profilesPrefix + name, "OTEL_EXPORTER_OTLP_" + name} {
		if value := strings.TrimSpace(e(variable)); value != "" {
			return value, variable
		}
	}
	return "", ""
}

// newConfig reads the configuration from the environment. A nonempty endpoint, which comes from the command line,
// takes precedence.
func newConfig(endpoint string, env environment) (config, error) {
	c := config{timeout: defaultTimeout, protocol: protocolGRPC}
	if text, variable := env.setting("PROTOCOL"); text != "" {
		if text != protocolGRPC && text != protocolHTTP {
			return config{}, fmt.Errorf("%s is %q, not %s or %s", variable, text, protocolGRPC, protocolHTTP)
		}
		c.protocol = text
	}
	setTarget := c.setTarget
	if c.protocol == protocolHTTP {
		setTarget = c.setURL
	}
	secure, err := setTarget(endpoint, env)
	if err != nil {
		return config{}, err
	}
	if secure {
		if c.tls, err = tlsConfig(env); err != nil {
			return config{}, err
		}
	}
	if text, variable := env.setting("TIMEOUT"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil || ms == 0 {
			return config{}, fmt.Errorf("%s is %q, not a number of milliseconds", variable, text)
		}
		c.timeout = time.Duration(ms) * time.Millisecond
	}
	switch text, variable := env.setting("COMPRESSION"); text {
	case "", "none":
	case gzip.Name:
		c.gzip = true
	default:
		return config{}, fmt.Errorf("%s is %q, not gzip or none", variable, text)
	}
	text, variable := env.setting("HEADERS")
	if c.headers, err = parseHeaders(text, c.protocol); err != nil {
		return config{}, fmt.Errorf("%s: %w", variable, err)
	}
	return c, nil
}

// setTarget sets the target and reports whether to use TLS. A URL's scheme, http or https, decides this. For other
// endpoints the variable INSECURE decides; TLS is the default.
func (c *config) setTarget(endpoint string, env environment) (secure bool, err error) {
	if endpoint == "" {
		endpoint, _ = env.setting("ENDPOINT")
	}
	endpoint = cmp.Or(endpoint, defaultEndpoint)
	scheme, _, found := strings.Cut(endpoint, "://")
	if scheme = strings.ToLower(scheme); found && (scheme == "http" || scheme == schemeTLS) {
		u, err := url.Parse(endpoint)
		if err != nil {
			return false, fmt.Errorf("endpoint: %w", err)
		}
		if u.Hostname() == "" {
			return false, fmt.Errorf("endpoint %q has no host", endpoint)
		}
		c.target = u.Host
		if u.Port() == "" {
			// Set the port here, because gRPC's own default is port 443, with or without TLS.
			c.target = net.JoinHostPort(u.Hostname(), defaultPort)
		}
		return scheme == schemeTLS, nil
	}
	if found && resolver.Get(scheme) == nil {
		return false, fmt.Errorf("endpoint: the scheme %q is not http, https or one of gRPC's, such as dns", scheme)
	}
	c.target = endpoint
	text, variable := env.setting("INSECURE")
	switch strings.ToLower(text) {
	case "", "false":
		return true, nil
	case "true":
		return false, nil
	default:
		return false, fmt.Errorf("%s is %q, not true or false", variable, text)
	}
}

// setURL is like setTarget, but for HTTP, where endpoints are URLs. It appends profilesPath to the endpoint for all
// signals, and to an endpoint from the command line that has no path. Other endpoints are used unchanged.
func (c *config) setURL(endpoint string, env environment) (secure bool, err error) {
	named, variable := env.setting("ENDPOINT")
	forAll := endpoint == "" && variable != profilesPrefix+"ENDPOINT"
	u, err := url.Parse(cmp.Or(endpoint, named, defaultHTTPEndpoint))
	if err != nil {
		return false, errors.New("endpoint: not a URL") // The original error would contain a password.
	}
	if u.Scheme != "http" && u.Scheme != schemeTLS || u.Hostname() == "" {
		return false, fmt.Errorf("endpoint %q is not a URL that begins with http:// or https:// and a host, as %s takes", u.Redacted(), protocolHTTP)
	}
	if forAll || endpoint != "" && strings.Trim(u.Path, "/") == "" {
		u = u.JoinPath(profilesPath)
	}
	c.target = u.String()
	return u.Scheme == schemeTLS, nil
}

// tlsConfig returns the TLS settings. The client trusts the authorities in the file CERTIFICATE, or the system's if
// that variable is unset. If CLIENT_CERTIFICATE and CLIENT_KEY are set, it presents that certificate.
func tlsConfig(env environment) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if path, variable := env.setting("CERTIFICATE"); path != "" {
		pem, err := os.ReadFile(path) //nolint:gosec // G304: the user names it
		if err != nil {
			return nil, fmt.Errorf("%s: %w", variable, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in %s", variable, path)
		}
	}
	certificate, certificateVariable := env.setting("CLIENT_CERTIFICATE")
	key, keyVariable := env.setting("CLIENT_KEY")
	if (certificate == "") != (key == "") {
		return nil, fmt.Errorf("%s%s is set without its counterpart: it takes both the client's certificate and key", certificateVariable, keyVariable)
	}
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", certificateVariable, keyVariable, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// parseHeaders parses comma-separated key=value pairs with percent-encoded values, as in the OTLP
// exporter's specification.
func parseHeaders(text, protocol string) (metadata.MD, error) {
	headers := metadata.MD{}
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		// Errors do not quote headers, because these may contain secrets.
		if !ok || key == "" || err != nil {
			return nil, errors.New("not key=value pairs between commas, with the values percent-encoded")
		}
		if !validHeader(strings.ToLower(key), value, protocol) {
			return nil, errors.New("a key has other characters than letters, digits, '-', '_' and '.', or begins with grpc-, " +
				"or a value has other characters than those of ASCII that print")
		}
		headers.Append(key, value)
	}
	return headers, nil
}

// validHeader reports whether a header may be sent. For both protocols it applies the rules for "Custom-Metadata"
// in gRPC's documentation of HTTP/2, except that binary values (keys that end with -bin) require gRPC. Without this
// check, an invalid header would be reported only when the first request is sent.
func validHeader(key, value, protocol string) bool {
	if strings.HasPrefix(key, "grpc-") || strings.Trim(key, "0123456789abcdefghijklmnopqrstuvwxyz-_.") != "" {
		return false
	}
	return protocol == protocolGRPC && strings.HasSuffix(key, "-bin") || !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
}
