"""Views against Pillow, numpy and the published statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from fedglean.errors import ConfigError, DataError
from fedglean.inputs import image_ops
from fedglean.inputs.randaugment import STRONG, augment, draw, rotation, work_on
from fedglean.inputs.views import VIEWS, Recipe, _weak, channels_last, view
from fedglean.randomness import bits, fold, uniform

NAMES = list(image_ops.OPERATIONS)
AFFINE = Image.Transform.AFFINE
COLOUR = Recipe((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), flip=True, pad=4)
GREY = Recipe((0.3,), (0.35,), flip=False, pad=1)
RECIPES = {
    "semifl-ra": COLOUR,
    "fixmatch-ra": Recipe(COLOUR.mean, COLOUR.std, True, 4, "fixmatch-ra"),
}


def noise_images(count: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Uniform noise between bounds that differ from channel to channel, so that nothing is already
    full-range.
    """
    low = bits(fold(seed, "low"), (count, channels, 1, 1)) % 120
    span = bits(fold(seed, "span"), (count, channels, 1, 1)) % 136 + 1
    return (low + (uniform(seed, (count, channels, height, width)) * span).long()).to(torch.uint8)


def photographs(size: int = 32) -> Tensor:
    crops = [
        picture[y : y + 4 * size, x : x + 4 * size]
        for picture in load_sample_images().images
        for y in (0, 190)
        for x in (0, 200, 400)
    ]
    small = [
        np.asarray(Image.fromarray(crop).resize((size, size), Image.Resampling.BILINEAR))
        for crop in crops
    ]
    return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).contiguous()


def digits(size: int) -> Tensor:
    pictures = (load_digits().images[:20] * 15.9375).astype(np.uint8)
    large = [
        np.asarray(Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR))
        for picture in pictures
    ]
    return torch.from_numpy(np.stack(large))[:, None]


def blank_images() -> Tensor:
    return (
        torch.tensor([0, 1, 127, 255], dtype=torch.uint8)[:, None, None, None]
        .expand(4, 3, 32, 32)
        .contiguous()
    )


COLLECTIONS = {
    "noise": noise_images(24, 3, 32, 32),
    "grey noise": noise_images(24, 1, 28, 28),
    "oblong": noise_images(12, 3, 17, 24),
    "photographs": photographs(),
    "digits": digits(28),
    "tiny digits": digits(8),
    "blank": blank_images(),
}
FACTORS = [(0.05 + 0.09 * level,) for level in range(1, 10)] + [(1.9,), (0.0,), (1.0,)]
SHEARS = [sign * 0.03 * level for level in (1, 4, 7, 10) for sign in (1, -1)]
STRENGTHS: dict[str, list[tuple[float, ...]]] = {
    **dict.fromkeys(("brightness", "colour", "contrast", "sharpness"), FACTORS),
    "autocontrast": [()],
    "equalize": [()],
    "posterize": [(number,) for number in range(1, 9)],
    "solarize": [(0,), (26,), (128,), (231,), (256,)],
}


def to_pillow(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def from_pillow(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def box(image: Image.Image, edge: float, *rest: float) -> Image.Image:
    """The published cutout: a corner pushed inside from a uniform centre, the far one clipped;
    Pillow draws both.
    """
    length, (row, column), (width, height) = edge - 1, rest[-2:], image.size
    x, y = int(max(0, column * width - length / 2)), int(max(0, row * height - length / 2))
    ImageDraw.Draw(image).rectangle(
        (x, y, int(min(width, x + length)), int(min(height, y + length))),
        (127,) * len(image.getbands()),
    )
    return image


PILLOW = {
    "autocontrast": lambda image, *_: ImageOps.autocontrast(image),
    "equalize": lambda image, *_: ImageOps.equalize(image),
    "posterize": lambda image, number, *_: ImageOps.posterize(image, int(number)),
    "solarize": lambda image, threshold, *_: ImageOps.solarize(image, int(threshold)),
    "brightness": lambda image, factor, *_: ImageEnhance.Brightness(image).enhance(factor),
    "colour": lambda image, factor, *_: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda image, factor, *_: ImageEnhance.Contrast(image).enhance(factor),
    "sharpness": lambda image, factor, *_: ImageEnhance.Sharpness(image).enhance(factor),
    "nearest": lambda image, *matrix: image.transform(image.size, AFFINE, matrix[:6]),
    "bilinear": lambda image, *matrix: image.transform(
        image.size, AFFINE, matrix[:6], Image.Resampling.BILINEAR
    ),
    "cutout": box,
}


def strengths(rows: list[tuple[float, ...]]) -> Tensor:
    return torch.tensor([[*row, *[0.0] * (8 - len(row))] for row in rows], dtype=torch.float64)


def operated(name: str, images: Tensor, *strength: float) -> Tensor:
    return image_ops.OPERATIONS[name](images, strengths([strength] * len(images)))


def by_pillow(name: str, images: Tensor, *strength: float) -> Tensor:
    return torch.stack([from_pillow(PILLOW[name](to_pillow(image), *strength)) for image in images])


@pytest.mark.parametrize("images", COLLECTIONS.values(), ids=COLLECTIONS)
@pytest.mark.parametrize("name", STRENGTHS)
def test_a_colour_operation_gives_exactly_pillows_pixels(name: str, images: Tensor) -> None:
    for strength in STRENGTHS[name]:
        assert torch.equal(operated(name, images, *strength), by_pillow(name, images, *strength)), (
            strength
        )


@pytest.mark.parametrize("images", COLLECTIONS.values(), ids=COLLECTIONS)
def test_invert_is_solarize_from_zero(images: Tensor) -> None:
    inverted = torch.stack([from_pillow(ImageOps.invert(to_pillow(image))) for image in images])
    assert torch.equal(operated("solarize", images, 0), inverted)


@pytest.mark.parametrize("images", COLLECTIONS.values(), ids=COLLECTIONS)
def test_a_rotation_gives_exactly_pillows_pixels(images: Tensor) -> None:
    for degrees in (*range(-27, 30, 6), 30, -30):
        rotated = torch.stack([from_pillow(to_pillow(image).rotate(degrees)) for image in images])
        assert torch.equal(
            operated("nearest", images, *rotation(degrees, *images.shape[2:])), rotated
        ), degrees


@pytest.mark.parametrize("images", COLLECTIONS.values(), ids=COLLECTIONS)
@pytest.mark.parametrize("name", ["nearest", "bilinear"])
def test_a_shear_gives_exactly_pillows_pixels(name: str, images: Tensor) -> None:
    for shear in SHEARS:
        for matrix in ((1, shear, 0, 0, 1, 0), (1, 0, 0, shear, 1, 0)):
            assert torch.equal(operated(name, images, *matrix), by_pillow(name, images, *matrix)), (
                matrix
            )


@pytest.mark.parametrize("images", COLLECTIONS.values(), ids=COLLECTIONS)
@pytest.mark.parametrize("resample", [Image.Resampling.NEAREST, Image.Resampling.BILINEAR])
def test_a_translation_gives_exactly_pillows_pixels_whatever_its_filter(
    images: Tensor, resample: Image.Resampling
) -> None:
    for move in (0, 1, -1, 5, -8, 100, -100):
        for matrix in ((1, 0, move, 0, 1, 0), (1, 0, 0, 0, 1, move)):
            moved = [
                from_pillow(
                    to_pillow(image).transform(to_pillow(image).size, AFFINE, matrix, resample)
                )
                for image in images
            ]
            assert torch.equal(operated("nearest", images, *matrix), torch.stack(moved)), matrix


@settings(deadline=None)
@given(
    row=st.floats(0, 0.999),
    column=st.floats(0, 0.999),
    edge=st.integers(1, 41),
    size=st.sampled_from([8, 28, 32]),
)
def test_a_cutout_is_the_published_rectangle(
    row: float, column: float, edge: int, size: int
) -> None:
    images = noise_images(1, 3, size, size)
    strength = (edge, 0, 0, 0, 0, 0, row, column)
    assert torch.equal(
        operated("cutout", images, *strength), by_pillow("cutout", images, *strength)
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    channels=st.sampled_from([1, 3]),
    height=st.integers(3, 40),
    width=st.integers(3, 40),
    name=st.sampled_from(list(STRENGTHS)),
    data=st.data(),
)
def test_colour_operations_equal_pillows_at_any_size(
    seed: int, channels: int, height: int, width: int, name: str, data: st.DataObject
) -> None:
    images = noise_images(2, channels, height, width, seed)
    strength = data.draw(st.sampled_from(STRENGTHS[name]))
    assert torch.equal(operated(name, images, *strength), by_pillow(name, images, *strength))


@pytest.mark.parametrize(
    "images", [COLLECTIONS["photographs"], COLLECTIONS["tiny digits"]], ids=["colour", "grey"]
)
@pytest.mark.parametrize("strong", STRONG)
def test_a_strong_view_is_pillows_operations_one_after_the_other(
    strong: str, images: Tensor
) -> None:
    keys = bits(7, (8 * len(images),))
    images = images.repeat(8, 1, 1, 1)
    codes, drawn = draw(keys, strong, *images.shape[2:])
    for image, result, steps, rows in zip(
        images, augment(strong, images.clone(), keys), codes, drawn, strict=True
    ):
        expected = to_pillow(image)
        for code, row in zip(steps.tolist(), rows.tolist(), strict=True):
            expected = PILLOW[NAMES[code]](expected, *row) if code >= 0 else expected
        assert torch.equal(result, from_pillow(expected))


def slow_weak(
    image: NDArray[np.uint8], flip: bool, top: int, left: int, pad: int
) -> NDArray[np.uint8]:
    padded = np.pad(
        image[:, :, ::-1] if flip else image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect"
    )
    return padded[:, top : top + image.shape[1], left : left + image.shape[2]]


@pytest.mark.parametrize(
    "recipe", [COLOUR, GREY, Recipe((0.5,) * 3, (0.2,) * 3, flip=False, pad=0)]
)
def test_a_weak_view_is_a_crop_of_the_reflected_image(recipe: Recipe) -> None:
    images, keys = noise_images(60, len(recipe.mean), 9, 11), bits(5, (60,))
    draws = uniform(fold(keys, "weak"), (3,)).numpy()
    views = view("weak", images, keys, recipe, torch.float64).numpy()
    mean, std = (np.array(values)[:, None, None] for values in (recipe.mean, recipe.std))
    for image, (flip, top, left), result in zip(images.numpy(), draws, views, strict=True):
        places = 2 * recipe.pad + 1
        expected = slow_weak(
            image, recipe.flip and flip < 0.5, int(top * places), int(left * places), recipe.pad
        )
        np.testing.assert_allclose(result, (expected / 255 - mean) / std, rtol=1e-12, atol=1e-12)


def test_a_weak_view_takes_every_flip_and_place_equally_often() -> None:
    image = torch.arange(100, dtype=torch.uint8).reshape(1, 1, 10, 10)
    recipe = Recipe((0.0,), (1.0,), flip=True, pad=2)
    views = _weak(image.expand(20_000, -1, -1, -1), bits(11, (20_000,)), recipe)
    _, counts = torch.unique(views.flatten(1), dim=0, return_counts=True)
    assert len(counts) == 50
    assert counts.min() > 300 and counts.max() < 500


def test_a_plain_view_is_only_normalised() -> None:
    images = noise_images(5, 3, 8, 8)
    mean, std = (np.array(values)[:, None, None] for values in (COLOUR.mean, COLOUR.std))
    expected = (images.numpy() / 255 - mean) / std
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        plain = view("plain", images, bits(0, (5,)), COLOUR, dtype)
        assert plain.dtype == dtype
        np.testing.assert_allclose(plain.double().numpy(), expected, atol=tolerance)


@pytest.mark.parametrize(("size", "reach"), [(8, 1), (28, 2), (32, 2), (56, 4)])
def test_a_shift_moves_uniformly_by_whole_pixels_and_lets_black_in(size: int, reach: int) -> None:
    count = 4000
    images = torch.zeros(count, 1, size, size, dtype=torch.uint8)
    images[:, :, size // 2, size // 2] = 200
    shifted = view("shift", images, bits(3, (count,)), Recipe((0.0,), (1.0,), False, 0)).squeeze(1)
    dots = (shifted > 0.5).nonzero()
    assert len(dots) == count and (shifted != 0).sum() == count
    _, counts = torch.unique(dots[:, 1:] - size // 2, dim=0, return_counts=True)
    places = (2 * reach + 1) ** 2
    assert len(counts) == places and (dots[:, 1:] - size // 2).abs().max() == reach
    assert (counts / count * places - 1).abs().max() < 0.6


def test_what_a_shift_lets_in_is_black_before_normalising() -> None:
    images = torch.full((200, 1, 28, 28), 255, dtype=torch.uint8)
    values = view("shift", images, bits(1, (200,)), GREY).unique().tolist()
    assert values == pytest.approx([-0.3 / 0.35, 0.7 / 0.35], rel=1e-6)


def test_noise_is_standard_normal_halved_on_the_normalised_image() -> None:
    images, keys = noise_images(300, 1, 28, 28), bits(2, (300,))
    added = view("noise", images, keys, GREY, torch.float64) - view(
        "plain", images, keys, GREY, torch.float64
    )
    assert abs(added.mean()) < 0.005 and abs(added.std() - 0.5) < 0.005
    assert abs((added**4).mean() / 0.5**4 - 3) < 0.1


CASES = [
    (COLLECTIONS["noise"], COLOUR),
    (COLLECTIONS["noise"], RECIPES["fixmatch-ra"]),
    (noise_images(24, 1, 7, 9), GREY),
]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(("images", "recipe"), CASES, ids=["semifl-ra", "fixmatch-ra", "grey"])
@settings(max_examples=8, deadline=None)
@given(rows=st.lists(st.integers(0, 23), min_size=1, max_size=30))
def test_an_images_view_does_not_depend_on_its_neighbours(
    name: str, images: Tensor, recipe: Recipe, rows: list[int]
) -> None:
    keys = bits(9, (len(images),))
    whole = view(name, images, keys, recipe)
    assert torch.equal(view(name, images[rows], keys[rows], recipe), whole[rows])


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_leaves_the_stored_images_alone_and_repeats_itself(name: str) -> None:
    images, keys = COLLECTIONS["noise"].clone(), bits(4, (24,))
    first = view(name, images, keys, COLOUR)
    assert torch.equal(images, COLLECTIONS["noise"])
    assert torch.equal(view(name, images, keys, COLOUR), first)
    spread = images.to(memory_format=torch.channels_last)
    assert torch.equal(view(name, spread, keys, COLOUR), first)


@pytest.mark.parametrize("name", VIEWS)
def test_no_images_give_no_views(name: str) -> None:
    empty = view(name, COLLECTIONS["noise"][:0], bits(4, (0,)), COLOUR)
    assert empty.shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", NAMES)
def test_working_everywhere_and_selecting_equals_working_on_the_few(name: str) -> None:
    images = COLLECTIONS["noise"]
    chosen = uniform(1, (24,)) < 0.3
    rows = strengths([(1, 0.3, 0, 0, 1, 0, 0.4, 0.7)] * 24)
    work = image_ops.OPERATIONS[name]
    few = work_on(chosen, work, images.clone(), rows, everywhere=False)
    assert torch.equal(work_on(chosen, work, images, rows, everywhere=True), few)
    assert torch.equal(few[~chosen], images[~chosen])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("strong", STRONG)
@pytest.mark.parametrize("name", sorted(set(VIEWS) - {"noise"}))
def test_a_gpu_gives_the_same_views_without_waiting(name: str, strong: str) -> None:
    images, keys = COLLECTIONS["noise"], bits(4, (24,))
    there, its_keys = images.cuda(), keys.cuda()
    view(name, there, its_keys, RECIPES[strong])
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_gpu = view(name, there, its_keys, RECIPES[strong])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(
        on_gpu.cpu(), view(name, images, keys, RECIPES[strong]), rtol=1e-6, atol=1e-6
    )


COUNT = 40_000


def test_two_operations_are_drawn_with_replacement_and_neither_applied_a_quarter_of_the_time() -> (
    None
):
    for strong, drawn in (("semifl-ra", 0.5), ("fixmatch-ra", 0.5 * 13 / 14)):
        codes = draw(bits(1, (COUNT,)), strong, 32, 32)[0][:, :2]
        nothing = (codes < 0).double()
        assert nothing.mean(0).tolist() == pytest.approx([1 - drawn] * 2, abs=0.01)
        assert nothing.prod(1).mean().item() == pytest.approx((1 - drawn) ** 2, abs=0.01)
        equalized = (codes == NAMES.index("equalize")).double()
        share = 0.5 / (15 if strong == "semifl-ra" else 14)
        assert equalized.mean().item() == pytest.approx(share, rel=0.06)
        assert equalized.prod(1).mean().item() == pytest.approx(share**2, rel=0.4)


def test_semifls_pool_has_the_published_strengths() -> None:
    codes, rows = (
        part.flatten(0, 1).tolist() for part in draw(bits(2, (COUNT,)), "semifl-ra", 32, 32)
    )
    applied = [(NAMES[code], row[:6]) for code, row in zip(codes, rows, strict=True) if code >= 0]
    drawn = {(name, *(round(number, 6) for number in row)) for name, row in applied}
    enhanced = {
        (name, 1.9, 0, 0, 0, 0, 0) for name in ("brightness", "colour", "contrast", "sharpness")
    }
    tables = {
        ("autocontrast", *[0] * 6),
        ("equalize", *[0] * 6),
        ("posterize", 4, *[0] * 5),
        ("solarize", *[0] * 6),
    }
    geometry = {
        ("nearest", *(round(number, 6) for number in rotation(angle, 32, 32)))
        for angle in (30, -30)
    }
    for sign in (1, -1):
        geometry |= {
            ("bilinear", 1, 0.3 * sign, 0, 0, 1, 0),
            ("bilinear", 1, 0, 0, 0.3 * sign, 1, 0),
        }
        geometry |= {("nearest", 1, 0, 100 * sign, 0, 1, 0), ("nearest", 1, 0, 0, 0, 1, 100 * sign)}
    assert drawn == enhanced | tables | geometry | {("cutout", 41, 0, 0, 0, 0, 0)}


def test_one_semifl_view_in_eight_is_black() -> None:
    """Translation empties 1 - (14/15)^2 = 12.9 %; a tenth of those emptied first are then inverted
    or boxed.
    """
    images = COLLECTIONS["photographs"].repeat(COUNT // 48, 1, 1, 1)
    keys = bits(3, (len(images),))
    codes, rows = draw(keys, "semifl-ra", 32, 32)
    emptied = ((codes == NAMES.index("nearest")) & (rows[..., [2, 5]].abs().amax(2) == 100)).any(1)
    assert emptied.double().mean().item() == pytest.approx(0.129, abs=0.01)
    black = (augment("semifl-ra", images, keys).flatten(1) == 0).all(1)
    assert black.double().mean().item() == pytest.approx(0.122, abs=0.01)


def test_semifls_box_covers_most_of_the_image() -> None:
    edge = torch.full((COUNT, 6), 41.0, dtype=torch.float64)
    covered = image_ops.cutout(
        torch.zeros(COUNT, 1, 32, 32, dtype=torch.uint8),
        torch.cat([edge, uniform(bits(6, (COUNT,)), (2,))], 1),
    )
    share = (covered > 0).double().mean((1, 2, 3))
    assert share.mean().item() == pytest.approx(0.88, abs=0.01)
    assert share.min().item() == pytest.approx(0.43, abs=0.005)
    assert (share == 1).double().mean().item() == pytest.approx(0.44, abs=0.02)


def test_a_fixmatch_view_always_ends_with_a_box_that_grows_with_the_image() -> None:
    for size, edge in ((8, 4), (28, 15), (32, 17), (64, 34)):
        codes, rows = draw(bits(4, (300,)), "fixmatch-ra", size, size)
        assert (codes[:, 2] == NAMES.index("cutout")).all()
        assert (rows[:, 2, 0] == edge).all()


def test_an_eight_pixel_digit_survives_fixmatch() -> None:
    views = augment("fixmatch-ra", digits(8).repeat(50, 1, 1, 1), bits(8, (1000,)))
    assert ((views.flatten(1) == 127).double().mean(1) < 0.5).all()


def test_views_of_the_same_key_are_cropped_afresh() -> None:
    images, keys = COLLECTIONS["noise"], bits(4, (24,))
    untouched = (draw(keys, "semifl-ra", 32, 32)[0] < 0).all(1)
    weak, strong = view("weak", images, keys, COLOUR), view("strong", images, keys, COLOUR)
    assert untouched.any() and not torch.equal(weak[untouched], strong[untouched])


def test_misspelt_names_and_impossible_recipes_are_refused_in_one_sentence() -> None:
    images, keys = COLLECTIONS["noise"], bits(4, (24,))
    with pytest.raises(ConfigError, match=r"unknown view 'strog'; did you mean 'strong'\?"):
        view("strog", images, keys, COLOUR)
    with pytest.raises(ConfigError, match=r"did you mean 'fixmatch-ra'\?"):
        Recipe((0.5,), (0.5,), False, 1, "fixmatch")
    with pytest.raises(ConfigError, match="std above 0"):
        Recipe((0.5,), (0.0,), False, 1)
    with pytest.raises(ConfigError, match="pad must be a number of pixels"):
        Recipe((0.5,), (0.5,), False, -1)
    with pytest.raises(ConfigError, match="must be below the shorter side, 32"):
        view("weak", images, keys, Recipe(COLOUR.mean, COLOUR.std, True, 32))


def test_images_of_the_wrong_kind_are_refused() -> None:
    images, keys = COLLECTIONS["noise"], bits(4, (24,))
    for wrong, its_keys in (
        (images.float(), keys),
        (images[0], keys),
        (images[:, :1], keys),
        (images, keys[:3]),
    ):
        with pytest.raises(DataError):
            view("plain", wrong, its_keys, COLOUR)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_channels_last_are_the_same_and_what_is_computed_of_them_stays_so(
    channels: int,
) -> None:
    images = torch.randn(4, channels, 6, 6, generator=torch.Generator().manual_seed(0))
    turned = channels_last(images)
    assert torch.equal(turned, images)
    convolved = torch.nn.functional.conv2d(turned, torch.ones(8, channels, 3, 3))
    assert convolved.is_contiguous(memory_format=torch.channels_last)
