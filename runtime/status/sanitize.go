package status

import (
	"regexp"
	"strings"
	"unicode"
)

// maxMessage bounds a sanitised text, in bytes.
const maxMessage = 512

const redacted = "[redacted]"

// secretShapes are texts that are taken for secrets wherever they stand. The
// first of a pair is what stays in front of the mark.
var secretShapes = []*regexp.Regexp{
	// PEM, also when its end is cut off.
	regexp.MustCompile(`()-----BEGIN [^-]*-----(?:.*?-----END [^-]*-----|.*)`),
	// The user and password of a URL.
	regexp.MustCompile(`(://)[^\s/?#]*@`),
	// What is called a secret, in YAML or JSON, in a command line, in a header.
	regexp.MustCompile(`(?i)((?:token|password|passwd|secret|certificate[-_]?key)["']?\s*[=:]\s*["']?)[^\s"',;]{6,}`),
	regexp.MustCompile(`(?i)(--[a-z-]*(?:token|password|key)\s+|\bbearer\s+)\S+`),
	// A bootstrap token, ID and secret, with all that is joined to it.
	regexp.MustCompile(`(?i)()[\w.-]*[a-z0-9]{6}\.[a-z0-9]{16}[\w.-]*`),
	// A certificate key has 64 hexadecimal digits; half of it is too much already.
	regexp.MustCompile(`(?i)()[0-9a-f]{32,}`),
}

var (
	longRun = regexp.MustCompile(`[A-Za-z0-9+/_=-]{20,}`)
	longest = regexp.MustCompile(`[A-Za-z0-9]{20,}`)
)

// Sanitize makes one line out of s that is safe to log: the given secrets and
// everything shaped like one (PEM blocks, bootstrap tokens, certificate keys,
// passwords in URLs, long random-looking runs) is replaced by a mark, control
// and direction characters by a space, and at most 512 bytes are kept. Digests
// go, too: they can't be told from keys.
func Sanitize(s string, secrets ...string) string {
	hide := func(s string) string {
		for _, secret := range secrets {
			// What is shorter is no secret, and would tear up every text.
			if secret = strings.TrimSpace(secret); len(secret) >= 6 {
				s = strings.ReplaceAll(s, secret, redacted)
				s = strings.ReplaceAll(s, oneLine(secret), redacted)
			}
		}
		return s
	}
	// Before and after, since a secret may itself have more than one line.
	s = hide(oneLine(hide(s)))
	for _, shape := range secretShapes {
		s = shape.ReplaceAllString(s, "${1}"+redacted)
	}
	mark := func(run string) string {
		if random(run) {
			return redacted
		}
		return run
	}
	s = longRun.ReplaceAllStringFunc(s, mark)
	s = longest.ReplaceAllStringFunc(s, mark)
	return cut(s, maxMessage)
}

// random tells whether a run looks generated: it mixes digits with letters of
// both cases, or it is unbroken and mixes digits with letters. Names of files,
// units and reasons don't.
func random(run string) bool {
	digit := strings.ContainsAny(run, "0123456789")
	lower := strings.ToUpper(run) != run
	upper := strings.ToLower(run) != run
	return digit && (lower && upper || (lower || upper) && !strings.ContainsAny(run, "+/_=-"))
}

// oneLine replaces every run of space, control, format and invalid characters
// by one space.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s, " ")
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.In(r, unicode.C, unicode.Zl, unicode.Zp)
	}), " ")
}

// cut shortens s to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const ellipsis = "…"
	return strings.ToValidUTF8(s[:n-len(ellipsis)], "") + ellipsis
}
