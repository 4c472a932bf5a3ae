"""The scikit-learn view: images to features, and nearest class means that go on learning, as estimators.

    from sklearn.pipeline import make_pipeline
    from fscil.sklearn import FeatureExtractor, NearestMeanClassifier

    model = make_pipeline(FeatureExtractor(), NearestMeanClassifier())
    model.fit(["a.jpg", "b.jpg", "c.jpg"], ["robin", "robin", "wren"])
    model.predict(["x.jpg"])

A pipeline has no partial_fit. To add classes later, call that of its last step, on features:

    extract, nearest = model[0], model[-1]
    nearest.partial_fit(extract.transform(["d.jpg"]), ["blackbird"])
    model.predict(["y.jpg"])                             # now one of three
"""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.preprocessing import normalize
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from fscil.classifier import Classifier

Floats: TypeAlias = NDArray[np.float64]


class NearestMeanClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The class whose mean feature is nearest by cosine; means are of raw features, a class may arrive at any time.

    scale: how sharply predict_proba prefers the nearest mean; it changes no prediction.
    """

    classes_: NDArray[Any]  # (C,) labels, sorted
    class_count_: NDArray[np.int64]  # (C,) samples each class has had
    _sums: Floats  # (C, d) of raw features

    def __init__(self, scale: float = 16.0) -> None:
        self.scale = scale

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget everything, then learn (n, d) features and their (n,) labels."""
        return self._learn(X, y, None, first=True)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Go on learning, in any order and grouping. Labels never seen before become new classes.

        classes: labels to expect; not needed, and until it has a sample a class is never predicted.
        """
        return self._learn(X, y, classes, first=not hasattr(self, "classes_"))

    def _learn(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None, first: bool) -> Self:
        if not 0 < self.scale < np.inf:
            raise ValueError(f"NearestMeanClassifier: scale must be above 0 and finite, not {self.scale!r}")
        features, labels = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(labels)
        named = [labels] if classes is None else [labels, classes]
        known = [] if first else [self.classes_]
        everybody = unique_labels(*known, *named)  # sorted; refuses words beside numbers
        if first or len(everybody) > len(self.classes_):
            counts, sums = np.zeros(len(everybody), np.int64), np.zeros((len(everybody), features.shape[1]))
            if not first:
                place = np.searchsorted(everybody, self.classes_)
                counts[place], sums[place] = self.class_count_, self._sums
            self.classes_, self.class_count_, self._sums = everybody, counts, sums
        place = np.searchsorted(self.classes_, labels)
        np.add.at(self._sums, place, features)
        np.add.at(self.class_count_, place, 1)
        return self

    @property
    def means_(self) -> Floats:
        """(C, d) mean of each class's raw features; NaN for a class that has had none."""
        with np.errstate(invalid="ignore"):
            means: Floats = self._sums / self.class_count_[:, None]
        return means

    def _cosines(self, X: ArrayLike) -> Floats:
        """(n, C); minus infinity for a class without samples."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        # A mean points where its sum points.
        cosines: Floats = normalize(features) @ normalize(self._sums).T
        cosines[:, self.class_count_ == 0] = -np.inf
        return cosines

    def decision_function(self, X: ArrayLike) -> Floats:
        """(n, C) cosines to the class means; with two classes (n,), by how much the second is nearer."""
        cosines = self._cosines(X)
        return cosines[:, 1] - cosines[:, 0] if len(self.classes_) == 2 else cosines

    def predict_proba(self, X: ArrayLike) -> Floats:
        """(n, C): softmax of scale times cosine. A ranking, no calibrated probability."""
        found: Floats = softmax(self.scale * self._cosines(X), axis=1)
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """(n,) the label of the nearest mean."""
        nearest = self._cosines(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[nearest]
        return found


class FeatureExtractor(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Images (paths, PIL images, uint8 arrays of (h, w, 3)) to (n, d) raw features of a frozen network.

    model: a Classifier, the path of one that was saved, or None for the pretrained network. There is nothing to learn:
    fit only loads the network, and transform does so by itself when needed.
    """

    def __init__(self, model: "Classifier | str | PathLike[str] | None" = None, device: str = "auto") -> None:
        self.model = model
        self.device = device

    def fit(self, X: Sequence[Any], y: Any = None) -> Self:
        from fscil.classifier import Classifier

        if self.model is None:
            self.classifier_ = Classifier.pretrained(device=self.device)
        elif isinstance(self.model, (str, PathLike)):
            self.classifier_ = Classifier.load(self.model, device=self.device)
        else:
            self.classifier_ = self.model
        return self

    def transform(self, X: Sequence[Any]) -> NDArray[np.float32]:
        """(n, d), in the order of the images."""
        if not hasattr(self, "classifier_"):
            self.fit(X)
        found: NDArray[np.float32] = self.classifier_.features(list(X)).numpy()
        return found

    def __sklearn_clone__(self) -> "FeatureExtractor":
        # The network is frozen: a copy of it for every fold of a cross-validation would be waste.
        return FeatureExtractor(self.model, self.device)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.no_validation = True
        tags.input_tags.two_d_array = False
        return tags
