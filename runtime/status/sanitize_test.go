package status

import (
	"encoding/base64"
	"encoding/hex"
	"math/rand"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestSecretsAreRedactedAndTheRestStays(t *testing.T) {
	for in, want := range map[string]string{
		"kubelet is well": "kubelet is well",
		"join with abcdef.0123456789abcdef refused":                                    "join with [redacted] refused",
		"x9abcdef.0123456789abcdef0":                                                   "[redacted]",
		"ABCDEF.0123456789ABCDEF":                                                      "[redacted]",
		"--token abc --x":                                                              "--token [redacted] --x",
		"--certificate-key=" + strings.Repeat("0a", 32):                                "--certificate-key=[redacted]",
		"key " + strings.Repeat("a", 64) + " end":                                      "key [redacted] end",
		"sha256:" + strings.Repeat("f", 64):                                            "sha256:[redacted]",
		"Authorization: Bearer abc.def":                                                "Authorization: Bearer [redacted]",
		`{"password":"hunter2!"}`:                                                      `{"password":"[redacted]"}`,
		"cluster_token: correct-horse":                                                 "cluster_token: [redacted]",
		"proxy http://user:pa55@proxy:3128/ refused":                                   "proxy http://[redacted]proxy:3128/ refused",
		"a\nb\tc\x00d\x1b[31me\u202ef\u2028g\xffh":                                     "a b c d [31me f g h",
		"before -----BEGIN EC PRIVATE KEY-----\nMHcC\nAQ":                              "before [redacted]",
		"a -----BEGIN RSA PRIVATE KEY-----\nQQ==\n-----END RSA PRIVATE KEY----- z":     "a [redacted] z",
		"/etc/kubernetes/tmp/kubeadm-backup-etcd-2026-11-30-21-13-22":                  "/etc/kubernetes/tmp/kubeadm-backup-etcd-2026-11-30-21-13-22",
		"provider-kubernetes-image-import.service: ClusterConfigTokenFileUnsafe":       "provider-kubernetes-image-import.service: ClusterConfigTokenFileUnsafe",
		"boot 9e2b1a52-2b1f-4f7e-9d0c-5d1f1f0f7b11 of registry.k8s.io/pause:3.10.2":    "boot 9e2b1a52-2b1f-4f7e-9d0c-5d1f1f0f7b11 of registry.k8s.io/pause:3.10.2",
		"jwt eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlMTIzNDU2Nzg": "jwt [redacted]",
	} {
		if got := Sanitize(in); got != want {
			t.Errorf("%q: got %q, expected %q", in, got, want)
		}
	}
}

func TestGivenSecretsAreRedactedWhateverTheyLookLike(t *testing.T) {
	for _, secret := range []string{"correct horse battery", "two\nlines", "  padded secret ", "ünïcödé"} {
		for _, text := range []string{"join: " + secret + "!", strings.ReplaceAll(secret, "\n", " "), "x" + secret + secret} {
			got := Sanitize(text, secret)
			if strings.Contains(got, strings.TrimSpace(secret)) || strings.Contains(got, "two lines") || !strings.Contains(got, "[redacted]") {
				t.Errorf("%q with secret %q: got %q", text, secret, got)
			}
		}
	}
	if got := Sanitize("a b c", "a", ""); got != "a b c" {
		t.Errorf("got %q: short texts are no secrets", got)
	}
}

func TestALongTextIsCutBetweenCharacters(t *testing.T) {
	got := Sanitize(strings.Repeat("é ", 1000))
	if len(got) > maxMessage || len(got) < maxMessage-4 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
		t.Errorf("%d bytes, %q", len(got), got)
	}
}

// FuzzNoKnownSecretSurvives puts secrets of every kind the node has into any
// text.
func FuzzNoKnownSecretSurvives(f *testing.F) {
	f.Add("error: ", " refused\n", int64(1))
	f.Add("token=", "", int64(2))
	f.Add("http://a:b@c/", "@", int64(3))
	f.Add("-----BEGIN X-----", "-----END X-----", int64(4))
	f.Add("\xff--token ", ".0123456789abcdef", int64(5))
	f.Add("abcdef.", "0123456789abcdef", int64(6))
	f.Fuzz(func(t *testing.T, before, after string, seed int64) {
		r := rand.New(rand.NewSource(seed))
		pick := func(alphabet string, n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = alphabet[r.Intn(len(alphabet))]
			}
			return string(b)
		}
		key := make([]byte, 48)
		r.Read(key)
		body := base64.StdEncoding.EncodeToString(key)
		const lower = "abcdefghijklmnopqrstuvwxyz0123456789"
		token := pick(lower, 6) + "." + pick(lower, 16)
		given := pick(lower+" \n-_/.", 24)
		secrets := map[string]string{
			"bootstrap token":       token,
			"certificate key":       hex.EncodeToString(key[:32]),
			"upper certificate key": strings.ToUpper(hex.EncodeToString(key[:32])),
			"base64":                body,
			"PEM":                   "-----BEGIN PRIVATE KEY-----\n" + body + "\n-----END PRIVATE KEY-----\n",
			"mixed run":             pick("ABCXYZabcxyz", 12) + "7aZ" + pick(lower, 8),
			"given":                 given,
		}
		for kind, secret := range secrets {
			got := Sanitize(before+secret+after, given)
			visible := strings.TrimSpace(secret)
			if kind == "PEM" {
				visible = body
			}
			// A part of what stands around may itself be the text that is hidden.
			if visible == "" || strings.Contains(before+after, visible) || kind == "given" && len(visible) < 6 {
				continue
			}
			if strings.Contains(got, visible) || strings.Contains(got, strings.Join(strings.Fields(visible), " ")) {
				t.Errorf("%s %q survives in %q", kind, secret, got)
			}
			if len(got) > maxMessage || !utf8.ValidString(got) || strings.IndexFunc(got, unicode.IsControl) >= 0 {
				t.Errorf("%q is no bounded line of text", got)
			}
		}
	})
}
