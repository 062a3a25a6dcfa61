package cluster

import "testing"

func TestEndpointsAreRead(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:6443", "10.0.0.1:8443": "10.0.0.1:8443", "API.Example": "api.example:6443", "node-1": "node-1:6443",
		"api.example:1": "api.example:1", "fd00::1": "[fd00::1]:6443", "[FD00:0::1]": "[fd00::1]:6443", "[fd00::1]:8443": "[fd00::1]:8443",
		"[::ffff:10.0.0.1]": "10.0.0.1:6443", "1password.example": "1password.example:6443", "3com": "3com:6443",
	} {
		if got, err := ParseEndpoint(in); err != nil || got.String() != want {
			t.Errorf("%q: got %s, %v, expected %s", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":6443", "https://a", "a b", "a:", "a:0", "a:65536", "a:06443", "a:x", "a:1:2", "[fd00::1", "fd00::1]", "[fd00::1]x", "[fd00::1]:", "[a]",
		"[10.0.0.1]", "fe80::1%eth0", "10.0.0.256", "10.0.0", "0.0.0.0", "[::]:6443", "fd00::1:6443", "-a", "a..b", "a_b", "a\n", "ff02::1",
	} {
		if got, err := ParseEndpoint(in); err == nil {
			t.Errorf("%q: got %s, expected an error", in, got)
		}
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, s := range []string{"a:1", "[fd00::1]:8443", "10.0.0.1", "::1", "[", "a]:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseEndpoint(s)
		if err != nil {
			return
		}
		if again, err := ParseEndpoint(e.String()); err != nil || again != e {
			t.Errorf("%q is %s, and that is %s, %v", s, e, again, err)
		}
	})
}
