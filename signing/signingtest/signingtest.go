// Package signingtest is a sigstore in memory for tests: a certificate
// authority that gives any identity, a transparency log, a timestamp authority,
// and the signatures they make, right or wrong in one chosen way. It writes
// signatures with code of its own, so that a reader and a writer of package
// signing can't be wrong alike.
package signingtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/kairos-io/provider-kubernetes/signing/internal/pki"
	"github.com/sigstore/sigstore-go/pkg/root"
)

const (
	simpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	bundleType    = "application/vnd.dev.sigstore.bundle.v0.3+json"
	inToto        = "application/vnd.in-toto+json"
)

// Sigstore is one set of authorities. Its time is fixed when it is made.
type Sigstore struct {
	// Epoch is the default time of a signature.
	Epoch time.Time

	ca, tsa pki.Holder
	log     *ecdsa.PrivateKey
	cas     []root.CertificateAuthority
	tsas    []root.TimestampingAuthority
	conf    Config
	root    []byte

	mu     sync.Mutex
	logged []logEntry // what Rekor answers from
}

// Config chooses what the authorities are. The zero value is a certificate
// authority and log that are valid now, and no timestamp authority.
type Config struct {
	// CAStart and CAEnd bound the certificate authority; zero means ten years
	// around now.
	CAStart, CAEnd time.Time
	// NoLog leaves the transparency log out of the trusted root, TSA puts a
	// timestamp authority in.
	NoLog, TSA bool
}

// New returns a sigstore.
func New(t testing.TB, conf Config) *Sigstore {
	t.Helper()
	s := &Sigstore{Epoch: time.Now().UTC().Truncate(time.Second).Add(-time.Hour), conf: conf}
	start, end := s.Epoch.AddDate(-5, 0, 0), s.Epoch.AddDate(5, 0, 0)
	if conf.CAStart.IsZero() {
		s.conf.CAStart = start
	}
	if conf.CAEnd.IsZero() {
		s.conf.CAEnd = end
	}
	s.ca = must(pki.NewCA("test authority", s.conf.CAStart, s.conf.CAEnd))(t)
	s.log = must(pki.NewKey())(t)

	s.cas = []root.CertificateAuthority{&root.FulcioCertificateAuthority{
		Root: s.ca.Cert, ValidityPeriodStart: s.conf.CAStart, ValidityPeriodEnd: s.conf.CAEnd,
	}}
	if conf.TSA {
		tsaRoot := must(pki.NewCA("test timestamps", start, end))(t)
		s.tsa = must(tsaRoot.Timestamper(start, end))(t)
		s.tsas = []root.TimestampingAuthority{&root.SigstoreTimestampingAuthority{
			Root: tsaRoot.Cert, Leaf: s.tsa.Cert, ValidityPeriodStart: start, ValidityPeriodEnd: end,
		}}
	}
	s.root = must(pki.TrustedRoot(s.cas, s.tsas, nil))(t)
	if !conf.NoLog {
		s.root = s.TrustedRootWithLog(t)
	}
	return s
}

// TrustedRoot returns the trusted_root.json of these authorities.
func (s *Sigstore) TrustedRoot() []byte { return s.root }

// TrustedRootWithLog returns one that names the log even when signatures are
// not in it.
func (s *Sigstore) TrustedRootWithLog(t testing.TB) []byte {
	t.Helper()
	id := s.logID(t)
	return must(pki.TrustedRoot(s.cas, s.tsas, map[string]*root.TransparencyLog{hex.EncodeToString(id): {
		BaseURL: "https://log.example.com", ID: id, ValidityPeriodStart: s.Epoch.AddDate(-5, 0, 0),
		HashFunc: crypto.SHA256, PublicKey: s.log.Public(), SignatureHashFunc: crypto.SHA256,
	}}))(t)
}

// Options choose one signature. Zero values mean a good one: signed at Epoch,
// logged and timestamped as the trusted root asks, by a leaf of ten minutes.
type Options struct {
	Identity, Issuer string
	// Bundle makes a Sigstore bundle attached as a referrer instead of the
	// legacy tag.
	Bundle bool
	// SignedAt is when log and timestamp authority saw it.
	SignedAt time.Time
	// NotBefore and NotAfter bound the leaf; zero means around SignedAt.
	NotBefore, NotAfter time.Time
	// Unwitnessed leaves out log entry and timestamp.
	Unwitnessed bool
	// Digest is what the payload names; zero means the manifest signed.
	Digest v1.Hash
	// DockerReference is what the payload names; empty means the repository.
	DockerReference string
	// PredicateType of a bundle; empty means that of a cosign signature.
	PredicateType string
	// Corrupt flips a bit of the signature itself after it was witnessed.
	Corrupt bool
}

func (s *Sigstore) defaults(o Options) Options {
	if o.SignedAt.IsZero() {
		o.SignedAt = s.Epoch
	}
	if o.NotBefore.IsZero() {
		o.NotBefore = o.SignedAt.Add(-5 * time.Minute)
	}
	if o.NotAfter.IsZero() {
		o.NotAfter = o.NotBefore.Add(10 * time.Minute)
	}
	if o.PredicateType == "" {
		o.PredicateType = "https://sigstore.dev/cosign/sign/v1"
	}
	return o
}

// Sign attaches a signature of the manifest with this digest to a repository.
// The manifest must be there for a bundle. A legacy signature is appended to
// those that the tag already has.
func (s *Sigstore) Sign(t testing.TB, repo name.Repository, digest v1.Hash, o Options) {
	t.Helper()
	o = s.defaults(o)
	if o.Digest == (v1.Hash{}) {
		o.Digest = digest
	}
	if o.DockerReference == "" {
		o.DockerReference = repo.Name()
	}
	if o.Bundle {
		s.signBundle(t, repo, digest, o)
		return
	}
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`,
		o.DockerReference, o.Digest)
	w := s.witness(t, payload, o)
	annotations := map[string]string{
		"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(w.sig),
		"dev.sigstore.cosign/certificate":    string(w.leafPEM()),
		"dev.sigstore.cosign/chain":          string(certPEM(s.ca.Cert)),
	}
	if w.timestamp != nil {
		annotations["dev.sigstore.cosign/rfc3161timestamp"] = string(must(json.Marshal(map[string][]byte{"SignedRFC3161Timestamp": w.timestamp}))(t))
	}
	if w.logged {
		e := s.entry(t, hashedRekord(fmt.Sprintf("%x", sha256.Sum256(payload)), w.sig, w.leafPEM()), o.SignedAt)
		annotations["dev.sigstore.cosign/bundle"] = string(must(json.Marshal(map[string]any{
			"SignedEntryTimestamp": e.set,
			"Payload":              e.payload,
		}))(t))
	}
	tag := repo.Tag("sha256-" + digest.Hex + ".sig")
	img, err := remote.Image(tag)
	if err != nil {
		img = mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	}
	img = must(mutate.Append(img, mutate.Addendum{
		Layer: static.NewLayer(payload, simpleSigning), Annotations: annotations, MediaType: simpleSigning,
	}))(t)
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
}

func (s *Sigstore) signBundle(t testing.TB, repo name.Repository, digest v1.Hash, o Options) {
	t.Helper()
	statement := fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q}`, o.Digest.Hex, o.PredicateType)
	w := s.witness(t, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(inToto), inToto, len(statement), statement), o)
	material := map[string]any{"certificate": map[string]any{"rawBytes": w.leaf.Cert.Raw}}
	if w.timestamp != nil {
		material["timestampVerificationData"] = map[string]any{
			"rfc3161Timestamps": []any{map[string]any{"signedTimestamp": w.timestamp}},
		}
	}
	if w.logged {
		envelope := must(json.Marshal(map[string]any{
			"payload": statement, "payloadType": inToto, "signatures": []any{map[string]any{"sig": w.sig}},
		}))(t)
		e := s.entry(t, dsseRecord(envelope, statement, w.sig, w.leafPEM()), o.SignedAt)
		material["tlogEntries"] = []any{e.protoJSON(t, s, "dsse")}
	}
	bundle := must(json.Marshal(map[string]any{
		"mediaType":            bundleType,
		"verificationMaterial": material,
		"dsseEnvelope": map[string]any{
			"payload": statement, "payloadType": inToto, "signatures": []any{map[string]any{"sig": w.sig}},
		},
	}))(t)
	subject := must(remote.Head(repo.Digest(digest.String())))(t)
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), bundleType)
	img = must(mutate.AppendLayers(img, static.NewLayer(bundle, bundleType)))(t)
	img = mutate.Annotations(img, map[string]string{"dev.sigstore.bundle.predicateType": o.PredicateType}).(v1.Image)
	img = mutate.Subject(img, *subject).(v1.Image) // last: the next change would drop it
	h := must(img.Digest())(t)
	if err := remote.Write(repo.Digest(h.String()), img); err != nil {
		t.Fatal(err)
	}
}

// SignBlob returns the detached signature and certificate of the file with this
// digest, in the form of .sig and .cert files, and enters it in the log unless
// it is to be unwitnessed.
func (s *Sigstore) SignBlob(t testing.TB, digest v1.Hash, o Options) (sig, cert []byte) {
	t.Helper()
	o = s.defaults(o)
	if o.Digest == (v1.Hash{}) {
		o.Digest = digest
	}
	leaf := must(s.ca.Signer(o.Identity, o.Issuer, o.NotBefore, o.NotAfter))(t)
	raw := must(ecdsa.SignASN1(rand.Reader, leaf.Key, must(hex.DecodeString(o.Digest.Hex))(t)))(t)
	if !o.Unwitnessed {
		e := s.entry(t, hashedRekord(o.Digest.Hex, raw, certPEM(leaf.Cert)), o.SignedAt)
		s.mu.Lock()
		s.logged = append(s.logged, e)
		s.mu.Unlock()
	}
	encode := func(b []byte) []byte { return base64.StdEncoding.AppendEncode(nil, b) }
	return encode(raw), encode(certPEM(leaf.Cert))
}

// Rekor serves the part of the Rekor v1 API that finds an entry by its content:
// POST /api/v1/log/entries/retrieve.
func (s *Sigstore) Rekor() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/log/entries/retrieve", func(w http.ResponseWriter, r *http.Request) {
		var query struct {
			Entries []json.RawMessage `json:"entries"`
		}
		if err := json.NewDecoder(r.Body).Decode(&query); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		answer := []any{}
		for _, q := range query.Entries {
			for i, e := range s.logged {
				if !sameJSON(q, e.body) {
					continue
				}
				entry := map[string]any{"verification": map[string]any{"signedEntryTimestamp": e.set}}
				maps.Copy(entry, e.payload)
				answer = append(answer, map[string]any{fmt.Sprintf("%080x", i): entry})
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
	return mux
}

// sameJSON compares two documents by their meaning.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// witnessed is a signature with what the authorities say about it.
type witnessed struct {
	leaf           pki.Holder
	sig, timestamp []byte
	logged         bool
}

func (w witnessed) leafPEM() []byte { return certPEM(w.leaf.Cert) }

func (s *Sigstore) witness(t testing.TB, message []byte, o Options) witnessed {
	t.Helper()
	w := witnessed{leaf: must(s.ca.Signer(o.Identity, o.Issuer, o.NotBefore, o.NotAfter))(t)}
	sum := sha256.Sum256(message)
	w.sig = must(ecdsa.SignASN1(rand.Reader, w.leaf.Key, sum[:]))(t)
	if o.Corrupt {
		w.sig[len(w.sig)-1] ^= 1
	}
	if !o.Unwitnessed {
		w.logged = !s.conf.NoLog
		if s.conf.TSA {
			w.timestamp = must(s.tsa.Timestamp(w.sig, o.SignedAt))(t)
		}
	}
	return w
}

// logEntry is an entry of the log with the log's promise to include it.
type logEntry struct {
	body    []byte
	payload map[string]any
	set     []byte
}

const logIndex = 41

func (s *Sigstore) logID(t testing.TB) []byte {
	t.Helper()
	sum := sha256.Sum256(must(x509.MarshalPKIXPublicKey(s.log.Public()))(t))
	return sum[:]
}

func (s *Sigstore) entry(t testing.TB, body []byte, at time.Time) logEntry {
	t.Helper()
	// A map encodes with sorted keys and without white space, which is the
	// canonical form of these values.
	e := logEntry{body: body, payload: map[string]any{
		"body": base64.StdEncoding.EncodeToString(body), "integratedTime": at.Unix(),
		"logID": hex.EncodeToString(s.logID(t)), "logIndex": logIndex,
	}}
	sum := sha256.Sum256(must(json.Marshal(e.payload))(t))
	e.set = must(ecdsa.SignASN1(rand.Reader, s.log, sum[:]))(t)
	return e
}

// protoJSON is the entry as a bundle has it, with proof that it is the only
// entry of a log of size one.
func (e logEntry) protoJSON(t testing.TB, s *Sigstore, kind string) map[string]any {
	t.Helper()
	const origin = "log.example.com - 1"
	leafHash := sha256.Sum256(append([]byte{0}, e.body...))
	note := fmt.Sprintf("%s\n1\n%s\n", origin, base64.StdEncoding.EncodeToString(leafHash[:]))
	sum := sha256.Sum256([]byte(note))
	sig := must(ecdsa.SignASN1(rand.Reader, s.log, sum[:]))(t)
	signed := append(s.logID(t)[:4:4], sig...)
	return map[string]any{
		"logIndex":         fmt.Sprint(logIndex),
		"logId":            map[string]any{"keyId": s.logID(t)},
		"kindVersion":      map[string]any{"kind": kind, "version": "0.0.1"},
		"integratedTime":   fmt.Sprint(e.payload["integratedTime"]),
		"inclusionPromise": map[string]any{"signedEntryTimestamp": e.set},
		"inclusionProof": map[string]any{
			"logIndex": "0", "treeSize": "1", "rootHash": leafHash[:],
			"checkpoint": map[string]any{"envelope": fmt.Sprintf("%s\n— log.example.com %s\n", note, base64.StdEncoding.EncodeToString(signed))},
		},
		"canonicalizedBody": e.body,
	}
}

// hashedRekord is the log's entry for a signature over a hash.
func hashedRekord(sumHex string, sig, leafPEM []byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"hashedrekord","spec":{"data":{"hash":{"algorithm":"sha256","value":%q}},"signature":{"content":%q,"publicKey":{"content":%q}}}}`,
		sumHex, base64.StdEncoding.EncodeToString(sig), base64.StdEncoding.EncodeToString(leafPEM))
}

// dsseRecord is the log's entry for an envelope.
func dsseRecord(envelope, payload, sig, leafPEM []byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"dsse","spec":{"envelopeHash":{"algorithm":"sha256","value":"%x"},"payloadHash":{"algorithm":"sha256","value":"%x"},"signatures":[{"signature":%q,"verifier":%q}]}}`,
		sha256.Sum256(envelope), sha256.Sum256(payload), base64.StdEncoding.EncodeToString(sig), base64.StdEncoding.EncodeToString(leafPEM))
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// must turns a fixture's error into the end of the test.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
