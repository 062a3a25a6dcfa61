package cluster

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// Proxy is how the node reaches the world. The URLs may hold passwords.
type Proxy struct {
	HTTP, HTTPS, All Secret
	No               string // comma-separated hosts, networks and domains
}

// Env returns the variables for a program's environment.
func (p Proxy) Env() []string {
	var env []string
	for _, v := range []struct{ name, value string }{
		{"HTTP_PROXY", string(p.HTTP)}, {"HTTPS_PROXY", string(p.HTTPS)}, {"ALL_PROXY", string(p.All)}, {"NO_PROXY", p.No},
	} {
		if v.value != "" {
			env = append(env, v.name+"="+v.value)
		}
	}
	return env
}

func (r reader) proxy() Proxy {
	env := r.table("env")
	values := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value, key := env[name], strings.ToUpper(name)
		switch key {
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY":
		default:
			r.warn("%q of env has no effect: only proxy variables are passed on", name)
			continue
		}
		if other, ok := values[key]; ok && other != value {
			r.add("%s of env is given in upper and in lower case with two values", key)
		}
		if strings.ContainsFunc(value, unicode.IsControl) {
			r.add("%s of env has control characters", name)
		}
		if u, err := url.Parse(value); key != "NO_PROXY" && value != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "socks5") {
			r.add("%s of env is no proxy's URL: expected the form http://host:port", name)
		}
		values[key] = value
	}
	return Proxy{HTTP: Secret(values["HTTP_PROXY"]), HTTPS: Secret(values["HTTPS_PROXY"]), All: Secret(values["ALL_PROXY"]), No: values["NO_PROXY"]}
}
