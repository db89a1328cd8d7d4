import argparse
import json
import math
import pathlib
import tempfile
import unittest
import xml.dom.minidom

import numpy as np
import torch

from tiny_model import random_ids, tiny_model
from llama_caches import base_tokens, figures
from measure import calibrated, compare, lines_of, open_lines, read_lines, rivals
from plot import draw
from summary import rows, table
from windows import evenly_spaced, starts


class WindowsTest(unittest.TestCase):
    def test_first_and_last_touch_the_ends(self):
        windows = evenly_spaced(torch.arange(103), 10, 4)
        self.assertEqual([int(window[0]) for window in windows], [0, 31, 62, 93])
        self.assertEqual({len(window) for window in windows}, {10})

    def test_a_short_text_is_refused_with_both_numbers(self):
        with self.assertRaisesRegex(ValueError, "20.*19"):
            starts(19, 20, 2)


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.model, self.ids = tiny_model(), random_ids(301)
        with torch.no_grad():
            self.hidden = self.model.hidden(self.ids)[:-1]
            self.full = self.model.log_probs(self.hidden)

    def test_the_same_distribution_has_no_divergence(self):
        result = compare(self.model, self.ids, self.full, self.hidden, 5)
        self.assertEqual((result["tokens"], result["top1"]), (300, 300))
        self.assertAlmostEqual(result["kl"], 0, places=4)
        nll = torch.nn.functional.nll_loss(self.full, self.ids[1:], reduction="sum").item()
        self.assertAlmostEqual(result["nll"], nll, places=2)

    def test_divergence_is_torchs_and_halves_add_up(self):
        other = self.hidden + 0.3 * torch.randn_like(self.hidden)
        result = compare(self.model, self.ids, self.full, other, 5)
        q = self.model.log_probs(other)
        each = torch.nn.functional.kl_div(q, self.full, log_target=True, reduction="none").sum(-1)
        self.assertAlmostEqual(result["kl"] / each.sum().item(), 1, places=5)
        self.assertAlmostEqual(result["kl_largest"][0] / each.max().item(), 1, places=3)
        self.assertEqual(result["second_half"]["tokens"], 150)
        self.assertAlmostEqual(result["second_half"]["kl"] / each[150:].sum().item(), 1, places=5)

    def test_every_rival_has_an_id_of_its_own_and_a_known_need(self):
        self.assertEqual(
            {needs for needs, _ in rivals(self.model).values()}, {"", "moments", "gradients"}
        )


def window_line(number, kl, rival="int4"):
    return {
        "model": "m",
        "rival": rival,
        "cache": rival,
        "family": "f",
        "windows": 2,
        "number": number,
        "window": 101,
        "bytes_per_token": 100.0,
        "bytes_at_window": 101 * 100 + 50,
        "full_bytes_per_token": 400,
        "tokens": 100,
        "nll": 200.0,
        "kl": kl,
        "top1": 90,
        "kl_largest": [kl, kl / 2, kl / 4],
    }


class SummaryTest(unittest.TestCase):
    def test_adds_windows_up(self):
        (row,) = rows([window_line(1, 2.0), window_line(0, 4.0)])
        self.assertAlmostEqual(row["perplexity"], math.exp(2))
        self.assertAlmostEqual(row["kl_mean"], 0.03)
        self.assertEqual((row["tokens"], row["top1"], row["bytes_per_sequence"]), (200, 0.9, 50))
        # 2 of the 200 tokens may have more.
        self.assertEqual(row["kl_p99"], 2.0)
        self.assertAlmostEqual(row["ratio_at_window"], 101 * 400 / 10150)

    def test_missing_and_doubled_windows_are_refused(self):
        for numbers in ([0], [0, 0], [0, 1, 1]):
            with self.assertRaisesRegex(ValueError, "int4"):
                rows([window_line(number, 1.0) for number in numbers])

    def test_the_table_is_in_order_of_bytes(self):
        small, large = rows(
            [window_line(0, 1, "a"), window_line(1, 1, "a")]
            + [{**window_line(n, 1, "b"), "bytes_at_window": 30000} for n in (0, 1)]
        )
        self.assertIn("| b |", table([small, large])[2])

    def test_the_plot_has_a_marker_for_each_row_with_a_divergence(self):
        measured = rows([window_line(n, 1, rival) for rival in "ab" for n in (0, 1)]) + rows(
            [window_line(n, 0, "zero") for n in (0, 1)]
        )
        own = {key: value for key, value in measured[0].items() if key not in ("rival", "family")}
        titles = xml.dom.minidom.parseString(draw(measured + [own], "a < b")).getElementsByTagName(
            "title"
        )
        shown = [title.firstChild.data for title in titles if "KL" in title.firstChild.data]
        self.assertEqual(len(shown), 3)

    def test_a_line_cut_off_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "lines")
            path.write_text(json.dumps(window_line(0, 1)) + '\n{"rival": "in')
            self.assertEqual(len(read_lines(path)), 1)
            with open_lines(path) as file:
                file.write(json.dumps(window_line(1, 1)) + "\n")
            self.assertEqual([line["number"] for line in read_lines(path)], [0, 1])


class KeptWorkTest(unittest.TestCase):
    def args(self, folder, **changed):
        facts = dict(
            model="m.gguf",
            windows=2,
            window=101,
            calibration=[pathlib.Path(folder, "ids.npy")],
            calibration_cache=pathlib.Path(folder, "kept"),
            calibration_windows=2,
            calibration_window=20,
            no_gradients=True,
        )
        return argparse.Namespace(**{**facts, **changed})

    def test_lines_of_another_model_or_window_are_not_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "lines")
            path.write_text(json.dumps(window_line(0, 1)) + "\n")
            self.assertEqual(len(lines_of(path, self.args(folder))), 1)
            for changed in ({"model": "n.gguf"}, {"windows": 3}, {"window": 99}):
                self.assertEqual(lines_of(path, self.args(folder, **changed)), [])

    def test_a_calibration_of_something_else_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            np.save(pathlib.Path(folder, "ids.npy"), random_ids(50).numpy())
            first = calibrated(self.args(folder), tiny_model(), {"moments"})
            kept = calibrated(self.args(folder), tiny_model(), {"moments"})
            self.assertTrue(torch.equal(kept.mean["k"][0], first.mean["k"][0]))
            for changed in ({"model": "n.gguf"}, {"calibration_window": 21}):
                with self.assertRaisesRegex(SystemExit, "kept is a calibration of"):
                    calibrated(self.args(folder, **changed), tiny_model(), {"moments"})


class LlamaCachesTest(unittest.TestCase):
    def test_reads_the_ids_of_a_base_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "base")
            path.write_bytes(
                b"_logits_" + np.array([4, 50, 1, 7, 8, 9, 10], "<i4").tobytes() + b"rest"
            )
            self.assertEqual(base_tokens(path).tolist(), [7, 8, 9, 10])
            path.write_bytes(b"GGUF" + bytes(30))
            with self.assertRaisesRegex(ValueError, "GGUF"):
                base_tokens(path)

    def test_reads_the_figures_at_the_end(self):
        text = """Mean PPL(Q)                   :  12.500000 ±   0.500000
Mean    KLD:   0.031000 ±   0.001000
99.0%   KLD:   0.250000
Same top p: 91.500 ± 0.300 %"""
        self.assertEqual(
            figures(text), {"perplexity": 12.5, "kl_mean": 0.031, "kl_p99": 0.25, "top1": 0.915}
        )


if __name__ == "__main__":
    unittest.main()
