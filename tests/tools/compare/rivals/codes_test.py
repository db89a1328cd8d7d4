import unittest

import gguf
import torch

import tiny_model  # noqa: F401
from codes import ggml_block, hadamard, min_max, nearest_level, symmetric, weighted_levels


class CodesTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.x = torch.randn(500, 192)

    def test_hadamard_is_orthogonal_with_entries_of_one_size_and_a_positive_rim(self):
        for order in (1, 2, 4, 12, 28, 48, 64, 144, 192, 208, 256):
            matrix = hadamard(order)
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(order), atol=1e-5, rtol=0)
            torch.testing.assert_close(matrix.abs(), torch.full((order, order), order**-0.5))
            self.assertTrue((matrix[0] > 0).all() and (matrix[:, 0] > 0).all())

    def test_hadamard_refuses_an_order_it_cannot_build(self):
        for order in (3, 6, 92):
            with self.assertRaisesRegex(ValueError, str(order)):
                hadamard(order)

    def test_ggml_blocks_are_those_of_the_gguf_package(self):
        for bits, kind in (
            (8, gguf.GGMLQuantizationType.Q8_0),
            (4, gguf.GGMLQuantizationType.Q4_0),
        ):
            theirs = gguf.dequantize(gguf.quantize(self.x.numpy(), kind), kind)
            torch.testing.assert_close(
                ggml_block(self.x, bits), torch.from_numpy(theirs), atol=0, rtol=0
            )

    def test_ggml_block_of_zeros_is_zero(self):
        self.assertEqual(ggml_block(torch.zeros(1, 32), 4).abs().max(), 0)

    def test_symmetric_grid_has_the_error_of_the_best_uniform_grid_on_gaussians(self):
        for bits, error in ((2, 0.1188), (3, 0.0374), (4, 0.0115)):
            self.assertLess((symmetric(self.x, bits) - self.x).square().mean(), error * 1.01)

    def test_symmetric_grid_has_few_levels_and_no_zero(self):
        decoded = symmetric(self.x[:1], 3).unique()
        self.assertLessEqual(len(decoded), 8)
        self.assertGreater(decoded.abs().min(), 0)

    def test_min_max_errs_by_half_a_step_at_most(self):
        for bits in (2, 4):
            step = (self.x.amax(-1) - self.x.amin(-1)) / (2**bits - 1)
            error = (min_max(self.x, bits) - self.x).abs().amax(-1)
            self.assertTrue((error <= step * 0.51 + 2e-3 * self.x.abs().amax(-1)).all())

    def test_min_max_over_another_dim_is_the_transposed(self):
        torch.testing.assert_close(min_max(self.x, 3, dim=0), min_max(self.x.T.contiguous(), 3).T)

    def test_levels_are_the_weighted_means_of_what_is_nearest(self):
        values = self.x.flatten().clamp(-4, 4) / 4
        weights = values.abs() + 0.1
        levels = weighted_levels(values, weights, 8)
        nearest = nearest_level(values, levels)
        for level in levels:
            mine = nearest == level
            mean = (values[mine] * weights[mine]).sum() / weights[mine].sum()
            self.assertLess((mean - level).abs(), 2e-3)

    def test_weights_draw_levels_to_them(self):
        values = torch.linspace(-1, 1, 4001)
        even = weighted_levels(values, torch.ones_like(values), 4)
        drawn = weighted_levels(values, 1 + 50 * (values > 0.5), 4)
        self.assertGreater(drawn.mean(), even.mean() + 0.3)


if __name__ == "__main__":
    unittest.main()
