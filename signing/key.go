package signing

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

// Names of a key pair's files, those that cosign uses.
const (
	privateKeyFile = "cosign.key"
	publicKeyFile  = "cosign.pub"
)

// Key is an ECDSA P-256 key pair that signs without a certificate.
type Key struct {
	private *ecdsa.PrivateKey
	public  []byte
}

// LoadOrCreateKey returns the key pair in dir, making it on first use:
// cosign.key (0600, in cosign's encrypted form with an empty password) and
// cosign.pub (0644). A key that others can read is refused. Two builders that
// start at the same time get the same key.
func LoadOrCreateKey(dir string) (*Key, error) {
	path := filepath.Join(dir, privateKeyFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		pair, err := cosign.GenerateKeyPair(nil)
		if err != nil {
			return nil, fmt.Errorf("make signing key: %w", err)
		}
		if err := createFile(path, pair.PrivateBytes, 0o600); err != nil {
			return nil, fmt.Errorf("make signing key: %w", err)
		}
	}
	if err := checkPrivate(path); err != nil {
		return nil, err
	}
	key, err := LoadKey(path, nil)
	if err != nil {
		return nil, err
	}
	pub := filepath.Join(dir, publicKeyFile)
	if err := createFile(pub, key.public, 0o644); err != nil {
		return nil, fmt.Errorf("write public key: %w", err)
	}
	if got, err := os.ReadFile(pub); err != nil {
		return nil, fmt.Errorf("read public key: %w", err)
	} else if string(got) != string(key.public) {
		return nil, fmt.Errorf("%s is not the public half of %s; remove it and it is written again", pub, path)
	}
	return key, nil
}

// LoadKey reads a private key file: cosign's encrypted form with its password
// (nil for an empty one), or plain PEM (PKCS #8 or EC). It must be ECDSA P-256.
func LoadKey(path string, password []byte) (*Key, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	key, err := parseKey(b, password)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", path, err)
	}
	return key, nil
}

func parseKey(b, password []byte) (*Key, error) {
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("not a PEM file")
	}
	der, private := block.Bytes, any(nil)
	var err error
	switch block.Type {
	case cosign.SigstorePrivateKeyPemType, cosign.CosignPrivateKeyPemType:
		if der, err = encrypted.Decrypt(der, password); err != nil {
			return nil, fmt.Errorf("decrypt with the given password: %w", err)
		}
		private, err = x509.ParsePKCS8PrivateKey(der)
	case cosign.ECPrivateKeyPemType:
		private, err = x509.ParseECPrivateKey(der)
	default:
		private, err = x509.ParsePKCS8PrivateKey(der)
	}
	if err != nil {
		return nil, err
	}
	ec, ok := private.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, fmt.Errorf("is a %T, expected ECDSA P-256", private)
	}
	public, err := cryptoutils.MarshalPublicKeyToPEM(ec.Public())
	if err != nil {
		return nil, err
	}
	return &Key{private: ec, public: public}, nil
}

// PublicKey returns the PEM public key.
func (k *Key) PublicKey() []byte { return k.public }

// Sign implements Signer. The same key, repository and manifest give the same
// bytes each time.
func (k *Key) Sign(_ context.Context, repository string, manifest v1.Descriptor) ([]Artifact, error) {
	der, err := x509.MarshalPKIXPublicKey(k.private.Public())
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", manifest.Digest, err)
	}
	sum := sha256.Sum256(der)
	artifacts, err := credential{
		sign: func(m []byte) ([]byte, error) { return signMessage(k.private, m) },
		hint: base64.StdEncoding.EncodeToString(sum[:]),
	}.artifacts(repository, manifest)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", manifest.Digest, err)
	}
	return artifacts, nil
}

// checkPrivate refuses a key file that anyone but its owner can use.
func checkPrivate(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read signing key: %w", err)
	}
	if mode := fi.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %#o, expected 0600: others may have read it; make a new key, or chmod 600 it when they can't have", path, mode)
	}
	return nil
}

// createFile makes path with b, durably and whole. A file that is already there
// stays, so that of two writers the first wins.
func createFile(path string, b []byte, perm fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, werr := f.Write(b)
	if err := errors.Join(werr, f.Chmod(perm), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
