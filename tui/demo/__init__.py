"""The demo: eight small agents on one real model whose KV pool holds about three of them."""
