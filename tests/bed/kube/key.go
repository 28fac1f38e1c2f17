package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// serviceAccountKey writes a fresh key with which the API server signs service account tokens to the file named by
// the one argument: neither Python's standard library nor a bare machine has a tool that makes one.
func serviceAccountKey() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: kube service-account-key FILE")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(os.Args[1], pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
