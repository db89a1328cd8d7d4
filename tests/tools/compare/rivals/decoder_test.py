import pathlib
import tempfile
import unittest

import gguf
import torch

from tiny_model import random_ids, tiny_model
from calibration import calibrate
from decoder import View, load


class DecoderTest(unittest.TestCase):
    def setUp(self):
        self.model, self.ids = tiny_model(), random_ids(40)

    def test_is_transformers_qwen2(self):
        from transformers import Qwen2Config, Qwen2ForCausalLM

        config = Qwen2Config(
            vocab_size=50,
            hidden_size=144,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
        theirs = Qwen2ForCausalLM(config)
        theirs.load_state_dict({name: weight for name, weight in self.model.weights.items()})
        with torch.no_grad():
            expected = torch.log_softmax(theirs(self.ids[None]).logits[0], -1)
            torch.testing.assert_close(
                self.model.log_probs(self.model.hidden(self.ids)), expected, atol=1e-4, rtol=1e-4
            )
            with tempfile.TemporaryDirectory() as folder:
                theirs.save_pretrained(folder)
                loaded = load(folder)
            torch.testing.assert_close(
                loaded.log_probs(loaded.hidden(self.ids)), expected, atol=1e-4, rtol=1e-4
            )

    def test_reads_gguf_rows_of_llama_in_half_split_order(self):
        model = self.model
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "m.gguf")
            writer = gguf.GGUFWriter(path, "llama")
            writer.add_block_count(2), writer.add_head_count(4), writer.add_head_count_kv(
                2
            ), writer.add_embedding_length(256)
            writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_freq_base(10000.0)
            rows = torch.arange(256.0)[:, None].expand(-1, 32).contiguous()
            # llama.cpp's converter puts row i of a head's half h at 2 i + h.
            paired = rows.view(4, 2, 32, 32).transpose(1, 2).reshape(256, 32).contiguous()
            writer.add_tensor("blk.0.attn_q.weight", paired.numpy())
            writer.add_tensor("blk.0.attn_v.weight", rows.numpy())
            writer.add_tensor("token_embd.weight", rows.numpy())
            writer.write_header_to_file(), writer.write_kv_data_to_file()
            writer.write_tensors_to_file(), writer.close()
            loaded = load(path)
        self.assertEqual(loaded.head_dim, 64)
        for name in ("q", "v"):
            torch.testing.assert_close(
                loaded.weights[f"model.layers.0.self_attn.{name}_proj.weight"], rows
            )
        self.assertIs(loaded.weights["lm_head.weight"], loaded.weights["model.embed_tokens.weight"])

    def test_a_query_sees_codes_before_its_boundary_and_exact_rows_from_it(self):
        class Torn:
            """What must not be seen when the boundary is 10 is 100 everywhere."""

            def __init__(self, boundary):
                self.boundary = torch.full((40,), boundary)

            def view(self, layer, k, v):
                k, v = model.rope(model.split_heads(k)), model.split_heads(v)
                before = torch.arange(40)[:, None] < 10
                seen = [torch.where(before, y, 100.0) for y in (k, v)] + [
                    torch.where(before, 100.0, y) for y in (k, v)
                ]
                return View(*seen, self.boundary, self.boundary)

        model = self.model
        with torch.no_grad():
            expected = model.hidden(self.ids)
            torch.testing.assert_close(
                model.hidden(self.ids, Torn(10)), expected, atol=1e-4, rtol=1e-4
            )
            for boundary in (9, 11):
                self.assertGreater(
                    (model.hidden(self.ids, Torn(boundary)) - expected).abs().max(), 0.1
                )

    def test_gradients_are_those_of_finite_differences(self):
        learned = calibrate(self.model, [self.ids], gradients=True)

        def loss(bump):
            def record(layer, k, v):
                if layer == 1:
                    v = v.clone()
                    v[7, 3] += bump
                return k, v

            with torch.no_grad():
                log_probs = self.model.log_probs(self.model.hidden(self.ids, record=record)[:-1])
            return -log_probs.double().gather(1, self.ids[1:, None]).mean().item()

        slope = (loss(0.05) - loss(-0.05)) / 0.1
        self.assertAlmostEqual(
            learned.sensitivity["v"][1][0, 7, 3].item() / slope**2, 1, delta=0.05
        )
        self.assertFalse(self.model.weights["model.layers.0.self_attn.k_proj.weight"].requires_grad)


if __name__ == "__main__":
    unittest.main()
