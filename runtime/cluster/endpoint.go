package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// DefaultPort is the API server's port where none is given.
const DefaultPort = 6443

// Endpoint is where an API server is reached.
type Endpoint struct {
	Host string // an IP address without brackets, or a lower-case DNS name
	Port uint16
}

// String returns "host:port" with brackets around an IPv6 address, and the
// empty string for the zero Endpoint.
func (e Endpoint) String() string {
	if e == (Endpoint{}) {
		return ""
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}

// ParseEndpoint reads a host with or without a port: "10.0.0.1", "api.example",
// "api.example:8443", "fd00::1", "[fd00::1]", "[fd00::1]:8443".
func ParseEndpoint(s string) (Endpoint, error) {
	bad := func(why string) (Endpoint, error) {
		return Endpoint{}, fmt.Errorf("%q %s: expected a host or host:port, an IPv6 address with a port in brackets", s, why)
	}
	if strings.Contains(s, "://") {
		return bad("is a URL")
	}
	host, port := s, ""
	if inner, ok := strings.CutPrefix(s, "["); ok {
		var rest string
		if host, rest, ok = strings.Cut(inner, "]"); !ok || rest != "" && rest[0] != ':' || !strings.Contains(host, ":") {
			return bad("has misplaced brackets")
		}
		port = rest
	} else if i := strings.IndexByte(s, ':'); i >= 0 && i == strings.LastIndexByte(s, ':') {
		host, port = s[:i], s[i:]
	}
	e := Endpoint{Port: DefaultPort}
	if port != "" {
		n, err := strconv.ParseUint(port[1:], 10, 16)
		if err != nil || n == 0 || port[1] == '0' {
			return bad("has no port between 1 and 65535 after its colon")
		}
		e.Port = uint16(n)
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case err != nil && !isHostName(host):
		return bad("is neither an IP address nor a DNS name")
	case err != nil:
		e.Host = strings.ToLower(host)
		return e, nil
	case addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast():
		return bad("is no address that other nodes can reach")
	case addr.Is6() && port == "" && strings.HasSuffix(s, ":"+strconv.Itoa(DefaultPort)):
		return bad("may or may not have a port")
	}
	e.Host = addr.Unmap().String()
	return e, nil
}

// isHostName tells whether s is a host name as RFC 1123 has it. A last label of
// digits only would be a mistyped IPv4 address.
func isHostName(s string) bool {
	var last string
	for last = range strings.SplitSeq(s, ".") {
		if !label.MatchString(last) {
			return false
		}
	}
	return len(s) <= 253 && strings.Trim(last, "0123456789") != ""
}

var label = regexp.MustCompile(`^(?i)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
