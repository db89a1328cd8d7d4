import unittest

import torch

from tiny_model import random_ids, tiny_model
from caches import Kivi, KvQuant, LlamaCpp, Palu, Rotated, allocate_ranks
from calibration import calibrate


class CachesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = tiny_model()
        cls.calibration = calibrate(
            cls.model, [random_ids(96, seed) for seed in range(4)], gradients=True
        )
        cls.ids = random_ids(150, 99)
        with torch.no_grad():
            cls.full = cls.model.hidden(cls.ids)

    def caches(self):
        model, calibration = self.model, self.calibration
        return [
            Rotated(model, 4),
            Rotated(model, 2, bias_out=False),
            Rotated(model, 3, calibration=calibration, sinks=4),
            Rotated(model, 4, sinks=4, per_head=True),
            Palu(model, calibration, 0.5, 4, "uniform"),
            Palu(model, calibration, 0.7, 4, "fisher-rms"),
            Kivi(model, 2, 32),
            Kivi(model, 4, 64),
            KvQuant(model, calibration, 3, 0.01),
            KvQuant(model, calibration, 2, 0),
            LlamaCpp(model, 8),
            LlamaCpp(model, 4, rotated=False),
        ]

    def error(self, cache):
        with torch.no_grad():
            return (self.model.hidden(self.ids, cache) - self.full).square().mean().item()

    def test_what_a_token_sees_depends_on_its_position_alone(self):
        for cache in self.caches():
            with torch.no_grad(), self.subTest(cache.name):
                whole = self.model.hidden(self.ids, cache)
                for length in (33, 101):
                    part = self.model.hidden(self.ids[:length], cache)
                    torch.testing.assert_close(part, whole[:length], atol=2e-4, rtol=1e-4)

    def test_every_cache_changes_the_output_but_little(self):
        for cache in self.caches():
            with self.subTest(cache.name):
                self.assertGreater(self.error(cache), 0)
                self.assertLess(self.error(cache), 1.0)

    def test_more_bits_and_more_ranks_err_less(self):
        model, calibration = self.model, self.calibration
        for worse, better in (
            (Rotated(model, 3), Rotated(model, 4)),
            (Kivi(model, 2, 32), Kivi(model, 4, 32)),
            (Kivi(model, 2, 32), Kivi(model, 2, 128)),
            (LlamaCpp(model, 4), LlamaCpp(model, 8)),
            (KvQuant(model, calibration, 2, 0), KvQuant(model, calibration, 4, 0)),
            (KvQuant(model, calibration, 2, 0), KvQuant(model, calibration, 2, 0.05)),
            (
                Palu(model, calibration, 0.25, 8, "uniform"),
                Palu(model, calibration, 0.375, 8, "uniform"),
            ),
        ):
            with self.subTest(f"{worse.name} / {better.name}"):
                self.assertLess(self.error(better), self.error(worse))

    def test_palu_at_full_rank_and_16_bits_is_exact(self):
        with torch.no_grad():
            ours = self.model.hidden(
                self.ids, Palu(self.model, self.calibration, 1.0, 16, "uniform")
            )
        torch.testing.assert_close(ours, self.full, atol=2e-3, rtol=1e-3)

    def test_palu_drops_the_least_of_the_calibrated_energy(self):
        cache = Palu(self.model, self.calibration, 0.25, 16, "uniform")
        y = (self.calibration.samples["k"][0] - self.model.bias(0, "k")).flatten(0, 1)
        lost = (
            (cache.decoded(0, "k", y + self.model.bias(0, "k")) - self.model.bias(0, "k") - y)
            .double()
            .square()
            .sum(1)
            .mean()
        )
        least = torch.linalg.eigvalsh(self.calibration.moment["k"][0])[:-32].sum()
        self.assertAlmostEqual((lost / least).item(), 1, places=3)

    def test_kivi_bytes_are_what_its_last_query_sees(self):
        cache = Kivi(self.model, 2, 32)
        for length in (20, 32, 33, 65, 150):
            y = torch.zeros(length, 128)
            view = cache.view(0, y, y)
            coded = sum(max(0, int(firsts[-1])) for firsts in (view.k_coded, view.v_coded))
            per_plane = self.model.layers * 128
            counted = coded * per_plane * (2 + 1) / 8 + (2 * length - coded) * per_plane * 2
            self.assertAlmostEqual(cache.bytes_at(length), counted)

    def test_bytes_of_a_token(self):
        model, calibration = self.model, self.calibration
        self.assertEqual(Rotated(model, 4).bytes_per_token(), 2 * 2 * (64 + 2))
        self.assertEqual(
            Rotated(model, 4, sinks=4).bytes_at(100), 100 * 2 * 2 * (64 + 2) + 4 * 4 * 2 * 128
        )
        self.assertEqual(
            Palu(model, calibration, 0.5, 4, "uniform").bytes_per_token(), 2 * 2 * (32 + 4)
        )
        self.assertEqual(LlamaCpp(model, 4).bytes_per_token(), 2 * 2 * 128 / 32 * 18)
        self.assertEqual(KvQuant(model, calibration, 3, 0).bytes_per_token(), 2 * (2 * 48 + 4))

    def test_kvquant_counts_the_outliers_of_the_window(self):
        cache = KvQuant(self.model, self.calibration, 3, 0.04)
        self.error(cache)
        share = cache.found / cache.seen / 128
        self.assertTrue(0.02 < share < 0.07, share)
        plain = KvQuant(self.model, self.calibration, 3, 0).bytes_per_token()
        self.assertAlmostEqual(cache.bytes_per_token(), plain + 2 * 2 * (4 * share * 128 + 4))
        cache.begin_window()
        self.assertEqual(cache.found, 0)

    def test_mean_out_takes_a_constant_away(self):
        cache = Rotated(self.model, 2, calibration=self.calibration, sinks=0)
        y = (self.calibration.mean["k"][0] + self.model.bias(0, "k")).expand(3, -1)
        torch.testing.assert_close(cache.decoded(0, "k", y), y, atol=1e-4, rtol=0)


class AllocateRanksTest(unittest.TestCase):
    def test_meets_the_budget_in_multiples(self):
        ranks = allocate_ranks([1.0, 2.0, 3.0, 50.0, 0.1], 192, 0.5)
        self.assertEqual([rank % 16 for rank in ranks], [0] * 5)
        self.assertLessEqual(abs(sum(ranks) - 0.5 * 192 * 5), 8)
        self.assertEqual(ranks[3], 192)
        self.assertEqual(sorted(ranks), [ranks[i] for i in (4, 0, 1, 2, 3)])

    def test_alike_importance_gives_alike_ranks(self):
        self.assertEqual(allocate_ranks([2.0] * 3, 192, 0.7), [128] * 3)


if __name__ == "__main__":
    unittest.main()
